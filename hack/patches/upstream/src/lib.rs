//! Upstream's h2 without our patch.

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{io::AsyncWriteExt as _, time::timeout};

    /// A connection with one request, in bytes: plain HPACK, fields by the number of their name.
    fn request(authority: &str) -> Vec<u8> {
        let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("short");
        let mut block = vec![0x83, 0x86, 0x84, 0x01, length(authority.as_bytes())];
        block.extend(authority.as_bytes());
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        // HEADERS with END_STREAM and END_HEADERS, of stream 1.
        bytes.extend([0, 0, length(&block), 1, 5, 0, 0, 0, 1]);
        bytes.extend(block);
        bytes
    }

    async fn is_accepted(authority: &str) -> bool {
        let (mut client, server) = tokio::io::duplex(4096);
        client.write_all(&request(authority)).await.expect("sent");
        let mut server = h2::server::handshake(server).await.expect("a connection");
        // A request that is reset is not reported: the wait goes on.
        let accepted = timeout(Duration::from_secs(5), server.accept()).await;
        matches!(accepted, Ok(Some(Ok(_))))
    }

    #[tokio::test]
    async fn an_authority_that_is_the_path_of_a_socket_is_still_refused() {
        assert!(is_accepted("localhost").await);
        for path in ["/run/cairn/cairn.sock", "%2Frun%2Fcairn%2Fcairn.sock"] {
            assert!(
                !is_accepted(path).await,
                "{path}: drop hack/patches/h2.patch"
            );
        }
    }
}

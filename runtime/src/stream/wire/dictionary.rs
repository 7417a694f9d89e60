//! The preset dictionary of SPDY/3.1's header compression: a constant of the protocol (draft
//! "SPDY Protocol - Draft 3.1", section 2.6.10.1).

use std::sync::OnceLock;

/// Adler-32 of the dictionary, by which a zlib stream names it.
pub const ADLER: u32 = 0xe3c6_a7c2;

/// Separated by commas; each is preceded by its length.
const WORDS: &str = concat!(
    "options,head,post,put,delete,trace,accept,accept-charset,accept-encoding,",
    "accept-language,accept-ranges,age,allow,authorization,cache-control,connection,",
    "content-base,content-encoding,content-language,content-length,content-location,",
    "content-md5,content-range,content-type,date,etag,expect,expires,from,host,if-match,",
    "if-modified-since,if-none-match,if-range,if-unmodified-since,last-modified,location,",
    "max-forwards,pragma,proxy-authenticate,proxy-authorization,range,referer,",
    "retry-after,server,te,trailer,transfer-encoding,upgrade,user-agent,vary,via,warning,",
    "www-authenticate,method,get,status,200 OK,version,HTTP/1.1,url,public,set-cookie,",
    "keep-alive,origin",
);

/// Follows the words unchanged.
const TAIL: &str = concat!(
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502",
    "504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Re",
    "quest401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Impl",
    "emented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00",
    ":00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,imag",
    "e/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivate",
    "max-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.",
);

/// The 1423 bytes of the dictionary.
pub fn dictionary() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut bytes = Vec::with_capacity(1423);
        for word in WORDS.split(',') {
            let len = u32::try_from(word.len()).unwrap_or_default();
            bytes.extend_from_slice(&len.to_be_bytes());
            bytes.extend_from_slice(word.as_bytes());
        }
        bytes.extend_from_slice(TAIL.as_bytes());
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_is_the_one_of_the_protocol() {
        let (mut a, mut b) = (1u32, 0u32);
        for byte in dictionary() {
            a = (a + u32::from(*byte)) % 65521;
            b = (b + a) % 65521;
        }
        assert_eq!(dictionary().len(), 1423);
        assert_eq!((b << 16) | a, ADLER);
    }
}

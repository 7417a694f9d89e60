//! `:authority` values of clients of a Unix socket. gRPC libraries without an authority send the
//! path of the socket, which is not a valid one; with `hack/patches/h2.patch` the daemon answers
//! them.

use std::{
    collections::BTreeMap, fs, io::Read as _, io::Write as _, os::unix::net::UnixStream,
    process::Command, time::Duration,
};

use cairn_tests::{Daemon, bins, output::shown};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A plain HPACK string after the bytes that identify its field.
fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = name.to_vec();
    match value.len() {
        short @ ..127 => bytes.push(u8::try_from(short).expect("below 127")),
        mut more => {
            bytes.push(127);
            more -= 127;
            while more >= 128 {
                bytes.push(u8::try_from(more % 128).expect("7 bits") | 128);
                more /= 128;
            }
            bytes.push(u8::try_from(more).expect("7 bits"));
        }
    }
    bytes.extend(value);
    bytes
}

/// A request of `Version`.
fn version(stream: u32, authority: &[u8]) -> Vec<u8> {
    // :method POST and :scheme http by their indexes, the others by the index of their names.
    let block = [
        vec![0x83, 0x86],
        field(&[0x04], b"/runtime.v1.RuntimeService/Version"),
        field(&[0x01], authority),
        field(&[0x0f, 0x10], b"application/grpc"),
        field(b"\x00\x02te", b"trailers"),
    ]
    .concat();
    let headers = frame(HEADERS, END_HEADERS, stream, &block);
    [headers, frame(DATA, END_STREAM, stream, &[0; 5])].concat()
}

/// Returns the result of each stream: its data, or that it was reset.
fn answers(connection: &mut UnixStream, streams: usize) -> BTreeMap<u32, Result<String, String>> {
    let mut ended = BTreeMap::new();
    let mut data: BTreeMap<u32, String> = BTreeMap::new();
    while ended.len() < streams {
        let mut head = [0; 9];
        connection.read_exact(&mut head).expect("a frame");
        let [_, a, b, kind, flags, ids @ ..] = head;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([a, b]))];
        connection.read_exact(&mut payload).expect("a payload");
        let stream = u32::from_be_bytes(ids);
        match kind {
            DATA => *data.entry(stream).or_default() += &String::from_utf8_lossy(&payload),
            HEADERS if flags & END_STREAM != 0 => {
                let data = data.remove(&stream).unwrap_or_default();
                ended.insert(stream, Ok(data));
            }
            RST_STREAM => drop(ended.insert(stream, Err(format!("reset: {payload:?}")))),
            GOAWAY => panic!("the connection ends: {payload:?}"),
            SETTINGS if flags == 0 => {
                let ack = frame(SETTINGS, 1, 0, &[]);
                connection.write_all(&ack).expect("sent");
            }
            _ => {}
        }
    }
    ended
}

#[tokio::test]
async fn a_client_gets_its_answer_whatever_it_sends_as_authority() {
    let daemon = Daemon::start().await;
    let socket = daemon.socket().display().to_string();
    let encoded = socket.replace('/', "%2F");
    let long = format!("/{}", "marked-by-a-stranger/".repeat(500));
    let all: [&[u8]; 12] = [
        b"localhost",
        socket.as_bytes(),
        encoded.as_bytes(),
        b"",
        b"user@",
        b"a b",
        b"[::1",
        b"localhost:notaport",
        b"marked-by-a-stranger\\\"%s%n{}",
        b"http://marked-by-a-stranger/x",
        "\u{e9}\u{202e}".as_bytes(),
        long.as_bytes(),
    ];
    let answered = tokio::task::spawn_blocking({
        let path = daemon.socket();
        let streams = (1..).step_by(2);
        let sent: Vec<u8> = streams.zip(all).flat_map(|(n, a)| version(n, a)).collect();
        move || {
            let mut connection = UnixStream::connect(path).expect("connects");
            let patience = Some(Duration::from_secs(60));
            connection.set_read_timeout(patience).expect("set");
            let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
            connection.write_all(preface).expect("sent");
            connection
                .write_all(&frame(SETTINGS, 0, 0, &[]))
                .expect("sent");
            connection.write_all(&sent).expect("sent");
            let target = field(&[0x01], b"/a/b");
            let connect = [field(&[0x02], b"CONNECT"), target].concat();
            let connect = frame(HEADERS, END_STREAM | END_HEADERS, 101, &connect);
            connection.write_all(&connect).expect("sent");
            answers(&mut connection, 13)
        }
    });
    let mut answered = answered.await.expect("no panic");
    let connect = answered.remove(&101).expect("ended");
    connect.expect_err("the authority is the target of a CONNECT");
    for ((stream, answer), authority) in answered.iter().zip(all) {
        let authority = String::from_utf8_lossy(authority);
        let is_version = answer.as_ref().is_ok_and(|data| data.contains("cairn"));
        assert!(is_version, "{stream} {authority:?}: {answer:?}");
    }
    assert!(!daemon.log().contains("marked-by-a-stranger"));
}

/// Programs of `hack/peers clients`; each gets the path of the socket.
const CLIENTS: [&str; 8] = [
    "crictl-1.30.0",
    "crictl-1.37.0",
    "go-1.47-dialer",
    "go-dialer",
    "go-passthrough",
    "go-unix",
    "grpcio",
    "grpc-java",
];

#[tokio::test]
async fn clients_of_other_libraries_get_their_answer() {
    let daemon = Daemon::start().await;
    let socket = daemon.socket().display().to_string();
    let encoded = socket.replace('/', "%2F");
    for authority in ["localhost", &socket, &encoded] {
        let curl = r#"printf '\0\0\0\0\0' | curl -sS --http2-prior-knowledge --unix-socket "$0" -H "Host: $1" \
            -H 'content-type: application/grpc' -H 'te: trailers' --data-binary @- http://localhost/runtime.v1.RuntimeService/Version"#;
        run("curl", &["sh", "-c", curl, &socket, authority]);
    }
    let dir = bins::peers().join("clients");
    for name in CLIENTS {
        let program = dir.join(name).display().to_string();
        if fs::exists(&program).expect("a directory") {
            run(name, &[&program, &socket]);
        } else {
            eprintln!("left out: {name} (hack/peers clients)");
        }
    }
}

fn run(name: &str, argv: &[&str]) {
    let output = Command::new("timeout").arg("60").args(argv).output();
    let output = output.expect("timeout runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("cairn"),
        "{name}: {}",
        shown(&output)
    );
}

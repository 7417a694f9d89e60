//! Pure: parses pressure and block I/O files. Unknown words are ignored, as the kernel may add
//! some.

/// Pressure stall information of one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Psi {
    pub some: PressureLine,
    pub full: PressureLine,
}

/// Percentages over 10, 60, 300 s, and the total in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PressureLine {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    pub total_ns: u64,
}

/// One device's share of block I/O.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoDevice {
    pub major: u32,
    pub minor: u32,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` and `full …`, with the total in µs.
pub(super) fn parse_psi(text: &str) -> Psi {
    let line = |name: &str| {
        let mut out = PressureLine::default();
        let found = text.lines().find_map(|l| l.strip_prefix(name));
        for word in found.unwrap_or_default().split_whitespace() {
            match word.split_once('=') {
                Some(("avg10", value)) => out.avg10 = value.parse().unwrap_or(0.0),
                Some(("avg60", value)) => out.avg60 = value.parse().unwrap_or(0.0),
                Some(("avg300", value)) => out.avg300 = value.parse().unwrap_or(0.0),
                Some(("total", value)) => {
                    out.total_ns = value.parse::<u64>().unwrap_or(0).saturating_mul(1000);
                }
                _ => {}
            }
        }
        out
    };
    Psi {
        some: line("some "),
        full: line("full "),
    }
}

/// v2: `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
pub(super) fn parse_io_stat(text: &str) -> Vec<IoDevice> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let mut device = io_device(words.next()?)?;
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let value = value.parse().unwrap_or(0);
            match key {
                "rbytes" => device.read_bytes = value,
                "wbytes" => device.write_bytes = value,
                "rios" => device.reads = value,
                "wios" => device.writes = value,
                _ => {}
            }
        }
        Some(device)
    };
    text.lines().filter_map(line).collect()
}

/// v1: two files of `8:0 Read 123` lines, one in bytes and one in operations.
pub(super) fn parse_blkio(bytes: &str, operations: &str) -> Vec<IoDevice> {
    let mut devices: Vec<IoDevice> = Vec::new();
    for (text, in_bytes) in [(bytes, true), (operations, false)] {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(kind), Some(value)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let (Some(named), Ok(value)) = (io_device(name), value.parse::<u64>()) else {
                continue;
            };
            let same = |d: &IoDevice| (d.major, d.minor) == (named.major, named.minor);
            let at = devices.iter().position(same).unwrap_or_else(|| {
                devices.push(named);
                devices.len() - 1
            });
            let device = &mut devices[at];
            match (kind, in_bytes) {
                ("Read", true) => device.read_bytes = value,
                ("Write", true) => device.write_bytes = value,
                ("Read", false) => device.reads = value,
                ("Write", false) => device.writes = value,
                _ => {}
            }
        }
    }
    devices
}

fn io_device(name: &str) -> Option<IoDevice> {
    let (major, minor) = name.split_once(':')?;
    Some(IoDevice {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        ..IoDevice::default()
    })
}

//! Signals by name (CRI-257). The CRI enum has its own numbers; images have free text.

use proto_cri::v1::Signal;

/// The signal that asks a container to end, as CRI enum and kernel number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopSignal {
    /// For ContainerStatus; never `RuntimeDefault`.
    pub cri: Signal,
    /// The kernel's number.
    pub number: i32,
}

impl StopSignal {
    pub const TERM: Self = Self {
        cri: Signal::Sigterm,
        number: 15,
    };
}

/// Names without `SIG` by kernel number, from 1. x86-64, arm64, riscv64 and s390x agree on these.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
const ALIASES: &[(&str, &str)] = &[("CLD", "CHLD"), ("IOT", "ABRT"), ("POLL", "IO")];
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// The effective stop signal (CRI-132): the container's, else the image's, else SIGTERM. An unknown
/// name in the image gives SIGTERM and a warning.
pub fn stop_signal(requested: i32, image: &str) -> (StopSignal, Option<String>) {
    if let Ok(signal) = Signal::try_from(requested)
        && let Some(number) = number_of(signal)
    {
        let cri = signal;
        return (StopSignal { cri, number }, None);
    }
    if image.is_empty() {
        return (StopSignal::TERM, None);
    }
    let warning = || format!("unknown image stop signal {image:?}, using SIGTERM");
    match parse(image) {
        Some(signal) => (signal, None),
        None => (StopSignal::TERM, Some(warning())),
    }
}

/// The kernel's number of a CRI signal; `None` for `RuntimeDefault`.
fn number_of(signal: Signal) -> Option<i32> {
    // The generated name is stable: `SIGNAL_SIGRTMINPLUS3`.
    let name = signal.as_str_name();
    by_name(name.strip_prefix("SIGNAL_").unwrap_or(name))
}

/// Parses `SIGTERM`, `term`, `15`, `SIGRTMIN+3`, `RTMAX-1`; `None` if unknown.
pub fn parse(text: &str) -> Option<StopSignal> {
    let text = text.trim();
    let number = match text.parse::<i32>() {
        Ok(number) => number,
        Err(_) => by_name(&text.to_ascii_uppercase())?,
    };
    from_number(number)
}

/// The CRI signal with this kernel number; `None` for 32 and 33, which the C library uses.
fn from_number(number: i32) -> Option<StopSignal> {
    (1..=65)
        .filter_map(|value| Signal::try_from(value).ok())
        // Aliases share a number; the canonical name wins.
        .filter(|s| !matches!(s, Signal::Sigcld | Signal::Sigiot | Signal::Sigpoll))
        .find(|signal| number_of(*signal) == Some(number))
        .map(|cri| StopSignal { cri, number })
}

fn by_name(name: &str) -> Option<i32> {
    let name = name.strip_prefix("SIG").unwrap_or(name);
    if let Some(offset) = offset_after(name, "RTMIN", &["+", "PLUS"]) {
        return Some(RTMIN + offset).filter(|n| *n <= RTMAX);
    }
    if let Some(offset) = offset_after(name, "RTMAX", &["-", "MINUS"]) {
        return Some(RTMAX - offset).filter(|n| *n >= RTMIN);
    }
    let name = ALIASES
        .iter()
        .find(|(alias, _)| *alias == name)
        .map_or(name, |(_, canonical)| canonical);
    (1..).zip(NAMES).find(|(_, n)| *n == name).map(|(v, _)| v)
}

/// `Some(0)` for the base alone, `Some(n)` for base, sign and a small number.
fn offset_after(name: &str, base: &str, signs: &[&str]) -> Option<i32> {
    let rest = name.strip_prefix(base)?;
    if rest.is_empty() {
        return Some(0);
    }
    let digits = signs.iter().find_map(|sign| rest.strip_prefix(sign))?;
    digits.parse::<u8>().ok().map(i32::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cri_signal_but_the_default_has_a_kernel_number() {
        for value in 1..=65 {
            let signal = Signal::try_from(value).expect("the enum has no gap");
            assert!(number_of(signal).is_some(), "{}", signal.as_str_name());
        }
        assert_eq!(number_of(Signal::RuntimeDefault), None);
    }

    #[test]
    fn cri_numbers_are_not_kernel_numbers() {
        assert_eq!(number_of(Signal::Sigabrt), Some(6));
        assert_eq!(number_of(Signal::Sigterm), Some(15));
        assert_eq!(number_of(Signal::Sigcld), number_of(Signal::Sigchld));
        assert_eq!(number_of(Signal::Sigpoll), number_of(Signal::Sigio));
        assert_eq!(number_of(Signal::Sigrtmin), Some(34));
        assert_eq!(number_of(Signal::Sigrtmaxminus14), Some(50));
        assert_eq!(number_of(Signal::Sigrtmax), Some(64));
    }

    #[test]
    fn image_texts_are_read_in_every_usual_form() {
        for text in ["SIGTERM", "TERM", "sigterm", "term", " 15 "] {
            assert_eq!(parse(text), Some(StopSignal::TERM), "{text}");
        }
        assert_eq!(parse("SIGRTMIN+3").map(|s| s.number), Some(37));
        assert_eq!(
            parse("rtmax-1").map(|s| s.cri),
            Some(Signal::Sigrtmaxminus1)
        );
        for text in [
            "",
            "0",
            "32",
            "65",
            "-1",
            "SIGRTMIN+31",
            "SIGRTMAX-31",
            "SIGFOO",
            "RTMIN+300",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_container_wins_over_the_image_and_nonsense_means_term_with_a_warning() {
        assert_eq!(stop_signal(Signal::Sigusr1 as i32, "SIGQUIT").0.number, 10);
        assert_eq!(stop_signal(0, "SIGQUIT").0.number, 3);
        let (signal, warning) = stop_signal(0, "SIGNONE");
        assert_eq!(signal, StopSignal::TERM);
        assert!(warning.expect("a warning").contains("SIGNONE"));
        assert_eq!(stop_signal(0, ""), (StopSignal::TERM, None));
        assert_eq!(stop_signal(9999, ""), (StopSignal::TERM, None));
    }
}

//! Host functions for a module: time, random numbers, a line of log. Files, network, environment
//! and arguments are not available.
//!
//! Of WASI preview 1 only the functions that the runtimes of Go, TinyGo and Rust need are
//! implemented. All others exist and return an error, so that a module which imports one still
//! starts.

use std::{
    fmt,
    io::Write as _,
    thread,
    time::{Duration, Instant, SystemTime},
};

use prost::Message as _;
use proto_nri::{LogRequest, log_request::Level};
use wasmi::{Caller, Error, Extern, ExternType, Linker, Memory, Module, StoreLimits, Val, ValType};

const WASI: &str = "wasi_snapshot_preview1";
/// Bytes that a module may log at once.
const LONGEST: u32 = 64 << 10;
/// Bytes of random numbers at once.
const MOST_RANDOM: u32 = 64 << 10;

const SUCCESS: i32 = 0;
const BADF: i32 = 8;
const FAULT: i32 = 21;
const INVAL: i32 = 28;
const NOSYS: i32 = 52;

/// An instance's state in its host.
pub(crate) struct State {
    pub limits: StoreLimits,
    /// Deadline of the current call.
    pub deadline: Instant,
    begun: Instant,
}

impl State {
    pub(crate) fn new(limits: StoreLimits, deadline: Instant) -> Self {
        Self {
            limits,
            deadline,
            begun: Instant::now(),
        }
    }
}

/// Error of a host function that would sleep beyond the deadline.
#[derive(Debug)]
pub(crate) struct TimedOut;

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the deadline has passed")
    }
}

impl wasmi::errors::HostError for TimedOut {}

type Host<'a> = Caller<'a, State>;
/// A failure of a function of WASI, by its WASI error number.
type Answer<T> = Result<T, i32>;

/// # Errors
/// None that a module could cause.
pub(crate) fn link(linker: &mut Linker<State>, module: &Module) -> Result<(), Error> {
    linker.allow_shadowing(true);
    for import in module.imports() {
        if let ExternType::Func(kind) = import.ty()
            && import.module() == WASI
        {
            // A module has no descriptors, and no other system resources.
            let answer = if import.name().starts_with("fd_") {
                BADF
            } else {
                NOSYS
            };
            linker.func_new(WASI, import.name(), kind.clone(), move |_, _, results| {
                let numbers = results.iter_mut().filter(|r| r.ty() == ValType::I32);
                numbers.for_each(|result| *result = Val::I32(answer));
                Ok(())
            })?;
        }
    }
    let zeroes = |mut host: Host<'_>, one: u32, other: u32| {
        number(put(&mut host, one, &[0; 4]).and_then(|()| put(&mut host, other, &[0; 4])))
    };
    linker.func_wrap(WASI, "args_sizes_get", zeroes)?;
    linker.func_wrap(WASI, "environ_sizes_get", zeroes)?;
    linker.func_wrap(WASI, "args_get", |_: u32, _: u32| SUCCESS)?;
    linker.func_wrap(WASI, "environ_get", |_: u32, _: u32| SUCCESS)?;
    linker.func_wrap(WASI, "sched_yield", || SUCCESS)?;
    linker.func_wrap(
        WASI,
        "clock_time_get",
        |mut host: Host<'_>, clock: u32, _: u64, to: u32| {
            number(now(&host, clock).and_then(|ns| put(&mut host, to, &ns.to_le_bytes())))
        },
    )?;
    linker.func_wrap(
        WASI,
        "random_get",
        |mut host: Host<'_>, to: u32, length: u32| {
            let done = random(&mut host, to, length);
            timely(&host, done)
        },
    )?;
    linker.func_wrap(
        WASI,
        "fd_write",
        |mut host: Host<'_>, fd: u32, parts: u32, count: u32, to: u32| {
            let done = write(&mut host, fd, parts, count, to);
            timely(&host, done)
        },
    )?;
    linker.func_wrap(
        WASI,
        "fd_fdstat_get",
        |mut host: Host<'_>, fd: u32, to: u32| number(describe(&mut host, fd, to)),
    )?;
    linker.func_wrap(
        WASI,
        "poll_oneoff",
        |mut host: Host<'_>, from: u32, to: u32, count: u32, reported: u32| -> Result<i32, Error> {
            let Ok(wake) = wake(&host, from, count) else {
                return Ok(INVAL);
            };
            sleep_until(wake, host.data().deadline)?;
            Ok(number(report(&mut host, from, to, count, reported)))
        },
    )?;
    linker.func_wrap(WASI, "proc_exit", |code: i32| -> Result<(), Error> {
        Err(Error::i32_exit(code))
    })?;
    // The answer is an empty message: no bytes at address 0.
    linker.func_wrap(
        "env",
        "log",
        |host: Host<'_>, from: u32, length: u32| -> Result<u64, Error> {
            log(&host, from, length).map(|()| 0)
        },
    )?;
    Ok(())
}

fn number(answer: Answer<()>) -> i32 {
    answer.err().unwrap_or(SUCCESS)
}

/// As [`number`], for work of the host: it uses no fuel, so only this check stops it.
fn timely(host: &Host<'_>, answer: Answer<()>) -> Result<i32, Error> {
    if Instant::now() < host.data().deadline {
        Ok(number(answer))
    } else {
        Err(Error::host(TimedOut))
    }
}

/// Writes a line of the log to standard error. If that is closed, the line is dropped.
pub(crate) fn say(level: &str, text: &str) {
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    line.insert_str(0, &format!("{level}: "));
    line.push('\n');
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn memory(host: &Host<'_>) -> Answer<Memory> {
    let memory = host.get_export("memory").and_then(Extern::into_memory);
    memory.ok_or(FAULT)
}

fn get<const N: usize>(host: &Host<'_>, from: u32) -> Answer<[u8; N]> {
    let mut bytes = [0; N];
    let read = memory(host)?.read(host, from as usize, &mut bytes);
    read.map_err(|_| FAULT)?;
    Ok(bytes)
}

fn put(host: &mut Host<'_>, to: u32, bytes: &[u8]) -> Answer<()> {
    let memory = memory(host)?;
    memory.write(host, to as usize, bytes).map_err(|_| FAULT)
}

fn word(host: &Host<'_>, at: u32) -> Answer<u32> {
    Ok(u32::from_le_bytes(get(host, at)?))
}

/// In nanoseconds: of the real clock, or since the instance was created.
fn now(host: &Host<'_>, clock: u32) -> Answer<u64> {
    let time = match clock {
        0 => SystemTime::UNIX_EPOCH.elapsed().map_err(|_| INVAL)?,
        1 => host.data().begun.elapsed(),
        _ => return Err(INVAL),
    };
    u64::try_from(time.as_nanos()).map_err(|_| INVAL)
}

fn random(host: &mut Host<'_>, to: u32, length: u32) -> Answer<()> {
    let mut bytes = vec![0; length.min(MOST_RANDOM) as usize];
    if length > MOST_RANDOM {
        return Err(INVAL);
    }
    let mut rest = bytes.as_mut_slice();
    while !rest.is_empty() {
        let flags = rustix::rand::GetRandomFlags::empty();
        let got = rustix::rand::getrandom(&mut *rest, flags).map_err(|_| NOSYS)?;
        rest = &mut rest[got..];
    }
    put(host, to, &bytes)
}

/// Both of its outputs go to our standard error, which a runtime that launched us logs.
fn write(host: &mut Host<'_>, fd: u32, parts: u32, count: u32, to: u32) -> Answer<()> {
    if fd != 1 && fd != 2 {
        return Err(BADF);
    }
    let mut printed = Vec::new();
    let mut taken: u32 = 0;
    for part in 0..count.min(1024) {
        let at = parts.checked_add(part * 8).ok_or(FAULT)?;
        let (from, length) = (
            word(host, at)?,
            word(host, at.checked_add(4).ok_or(FAULT)?)?,
        );
        let length = length.min(LONGEST - taken);
        let mut bytes = vec![0; length as usize];
        let read = memory(host)?.read(&*host, from as usize, &mut bytes);
        read.map_err(|_| FAULT)?;
        printed.extend(bytes);
        taken += length;
    }
    // If standard error is closed, the output is dropped.
    let _ = std::io::stderr().write_all(&printed);
    put(host, to, &taken.to_le_bytes())
}

/// Its standard streams are character devices; no others exist.
fn describe(host: &mut Host<'_>, fd: u32, to: u32) -> Answer<()> {
    if fd > 2 {
        return Err(BADF);
    }
    let mut stat = [0_u8; 24];
    stat[0] = 2;
    stat[8..].fill(0xff);
    put(host, to, &stat)
}

const SUBSCRIPTION: u32 = 48;
const EVENT: u32 = 32;
const MOST_SUBSCRIPTIONS: u32 = 1024;

/// The earliest of its clock subscriptions; now, if it waits for a descriptor, because it has none.
fn wake(host: &Host<'_>, from: u32, count: u32) -> Answer<Instant> {
    if count == 0 || count > MOST_SUBSCRIPTIONS {
        return Err(INVAL);
    }
    let begun = Instant::now();
    let mut first = None;
    for n in 0..count {
        let all: [u8; SUBSCRIPTION as usize] =
            get(host, from.checked_add(n * SUBSCRIPTION).ok_or(FAULT)?)?;
        if all[8] != 0 {
            return Ok(begun);
        }
        let clock = u32::from_le_bytes(all[16..20].try_into().map_err(|_| FAULT)?);
        let mut ns = u64::from_le_bytes(all[24..32].try_into().map_err(|_| FAULT)?);
        if all[40] & 1 == 1 {
            ns = ns.saturating_sub(now(host, clock)?);
        }
        first = Some(first.map_or(ns, |earlier: u64| earlier.min(ns)));
    }
    let ns = Duration::from_nanos(first.unwrap_or(0));
    Ok(begun
        .checked_add(ns)
        .unwrap_or(begun + Duration::from_secs(86_400)))
}

fn sleep_until(wake: Instant, deadline: Instant) -> Result<(), Error> {
    thread::sleep(wake.min(deadline).saturating_duration_since(Instant::now()));
    if wake < deadline {
        Ok(())
    } else {
        Err(Error::host(TimedOut))
    }
}

/// Every subscription gets an event; the caller subscribes again to those that are early.
fn report(host: &mut Host<'_>, from: u32, to: u32, count: u32, reported: u32) -> Answer<()> {
    for n in 0..count {
        let all: [u8; SUBSCRIPTION as usize] =
            get(host, from.checked_add(n * SUBSCRIPTION).ok_or(FAULT)?)?;
        let mut event = [0_u8; EVENT as usize];
        event[..8].copy_from_slice(&all[..8]);
        event[10] = all[8];
        if all[8] != 0 {
            event[8] = 8;
        }
        put(host, to.checked_add(n * EVENT).ok_or(FAULT)?, &event)?;
    }
    put(host, reported, &count.to_le_bytes())
}

fn log(host: &Host<'_>, from: u32, length: u32) -> Result<(), Error> {
    let bad = |why: &str| Error::new(format!("env.log: {why}"));
    let memory = memory(host).map_err(|_| bad("the module exports no memory"))?;
    let mut bytes = vec![0; length.min(LONGEST) as usize];
    if length > LONGEST {
        return Err(bad("a message of more than 64 KiB"));
    }
    let read = memory.read(host, from as usize, &mut bytes);
    read.map_err(|_| bad("outside of the module's memory"))?;
    let printed = LogRequest::decode(&*bytes).map_err(|e| bad(&e.to_string()))?;
    let level = match printed.level() {
        Level::Unspecified | Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warning",
        Level::Error => "error",
    };
    printed.msg.lines().for_each(|line| say(level, line));
    timely(host, Ok(())).map(drop)
}

//! cairn: a small CRI runtime with NRI built in.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        // Before anything else is started: the helper must have one thread.
        Some(command) if command == "unpack" => cairn::image::unpack::helper_main(args),
        _ => ExitCode::SUCCESS,
    }
}

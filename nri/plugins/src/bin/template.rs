//! The program `template`; see `-help` and `nri_plugins::template`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::template::Template>()
}

//! The program `differ`; see `-help` and `nri_plugins::differ`.

use std::process::ExitCode;

use nri_plugins::{
    differ::{self, Differ},
    log::Log,
    plugin,
};
use tokio::task::JoinSet;

fn main() -> ExitCode {
    match plugin::arguments(differ::NAME, &differ::USAGE, differ::FLAGS) {
        Err(code) => code,
        Ok(args) => {
            let log = Log::new(differ::NAME, args.is("verbose"));
            let served = Differ::new(&args, log.clone()).and_then(|differ| {
                plugin::run(async {
                    let mut all = JoinSet::new();
                    for (at, index) in differ.indices().iter().enumerate() {
                        let (index, args) = (Some(index.clone()), args.clone());
                        all.spawn(plugin::serve(
                            differ::NAME,
                            index,
                            args,
                            differ.handlers(at),
                        ));
                    }
                    // One lost connection makes the comparison meaningless, so all are ended.
                    match all.join_next().await {
                        Some(Ok(ended)) => ended,
                        Some(Err(e)) => Err(e.to_string()),
                        None => Ok(()),
                    }
                })
            });
            plugin::end(&log, served)
        }
    }
}

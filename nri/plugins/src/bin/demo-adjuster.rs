//! Usage of `demo-adjuster`:
//!
//! ```text
//! demo-adjuster -idx 10 -annotation demo=1 -env DEMO=1 -args 'sleep 5' -rlimit nofile=512:1024
//! demo-adjuster -idx 10 -mount /etc:/demo:ro -device /dev/demo:c:1:3:666 -hook createRuntime:/bin/true
//! demo-adjuster -idx 10 -container c0 -memory 67108864 -cpu-shares 512 -pids 64
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::demo_adjuster::DemoAdjuster>()
}

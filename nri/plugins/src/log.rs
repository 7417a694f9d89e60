//! Log of a plugin: standard error, or a file. A launched plugin has no standard error; use a file.

use std::{
    fmt::Display,
    fs::OpenOptions,
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use parking_lot::Mutex;

/// A log that can be cloned and redirected. A line that cannot be written is dropped.
#[derive(Clone)]
pub struct Log {
    name: &'static str,
    verbose: bool,
    sink: Arc<Mutex<Box<dyn Write + Send>>>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Log({})", self.name)
    }
}

impl Log {
    /// A log to standard error.
    pub fn new(name: &'static str, verbose: bool) -> Self {
        Self {
            name,
            verbose,
            sink: Arc::new(Mutex::new(Box::new(io::stderr()))),
        }
    }

    /// Appends to a file from now on; applies to all clones.
    pub fn to_file(&self, path: impl AsRef<Path>) -> Result<(), String> {
        let path = path.as_ref();
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file = file.map_err(|e| format!("log file {}: {e}", path.display()))?;
        *self.sink.lock() = Box::new(file);
        Ok(())
    }

    /// A line under the plugin's name.
    pub fn info(&self, line: impl Display) {
        self.raw(format_args!("{}: {line}", self.name));
    }

    /// A line under the plugin's name, if it is verbose.
    pub fn debug(&self, line: impl Display) {
        if self.verbose {
            self.info(line);
        }
    }

    /// An unchanged line.
    pub fn raw(&self, line: impl Display) {
        let text = format!("{line}\n");
        let mut sink = self.sink.lock();
        let _ = sink.write_all(text.as_bytes()).and_then(|()| sink.flush());
    }
}

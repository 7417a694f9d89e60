//! A module and its one instance: loaded, called, stopped at its deadline.
//!
//! ```text
//!  bytes ─► Module ─► instance ──call──► answer
//!                        ▲        └────► stopped at its deadline: the instance is dropped
//!                        └────────────── the next call makes another, configured alike, empty
//! ```
//! The ABI is that of the Go package `pkg/api` (`go-plugin`): a function takes an encoded request
//! at (pointer, length) and returns pointer and length of the encoded answer in one number, with
//! bit 31 set if the answer is an error text.

use std::time::{Duration, Instant};

use wasmi::{
    Config, CustomFuelCosts, Engine, Extern, Instance, Linker, Memory, Store, StoreLimitsBuilder,
    TypedFunc, TypedResumableCall, WasmParams, WasmResults, errors::ErrorKind,
};

use crate::host::{self, State, TimedOut, say};

/// Required result of `plugin_api_version`.
const API_VERSION: u64 = 1;
/// Bytes of an answer: the maximum of the mux.
const LONGEST: u32 = 4 << 20;
/// Work between two checks of the clock: about a millisecond.
const SLICE: u64 = 1 << 18;
const TABLES: usize = 8;
/// Fraction of the bound for all tables together (1/16); each may use an eighth of that.
const SHARE_OF_TABLES: usize = 16;
/// Bytes of a table element, including the reserve of a table that grows.
const ELEMENT: usize = 16;
/// Time limit to create an instance.
const START: Duration = Duration::from_secs(5);

/// Error of a module.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModuleError {
    #[error("not a module that can be run: {0}")]
    Bad(String),
    #[error("exports no {0}: not an NRI plugin")]
    Missing(&'static str),
    #[error("made for version {0} of the plugin API (supported: {API_VERSION})")]
    Version(u64),
    /// The plugin's own error text.
    #[error("{0}")]
    Refused(String),
    #[error("{function}: {why}")]
    Failed { function: String, why: String },
    #[error("{0}: stopped at its deadline")]
    TimedOut(String),
}

impl ModuleError {
    /// Whether the instance can be called again.
    fn is_answer(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

/// A module and its instance, if it has one.
pub(crate) struct Module {
    engine: Engine,
    module: wasmi::Module,
    memory: usize,
    instance: Option<Running>,
    /// Configuration of the first instance.
    configured: Option<Vec<u8>>,
}

struct Running {
    store: Store<State>,
    instance: Instance,
    memory: Memory,
    malloc: TypedFunc<u32, u32>,
    free: TypedFunc<u32, ()>,
}

impl Module {
    /// Compiles the module, and creates an instance, whose memory and tables may take `memory`
    /// bytes together.
    ///
    /// # Errors
    /// It is not a module, not a plugin, or does not start.
    pub(crate) fn load(bytes: &[u8], memory: usize) -> Result<Self, ModuleError> {
        let mut config = Config::default();
        // The start section would run without a deadline; no compiler of plugins emits one.
        config.consume_fuel(true).allow_start_fn(false);
        // The limit applies to each memory.
        config.wasm_multi_memory(false);
        // Functions are translated at their first call, which could not be resumed after running
        // out of fuel.
        config.fuel_cost(CustomFuelCosts {
            bytes_copied_per_fuel: 64,
            fuel_per_bytes_translated: 0,
            fuel_per_bytes_validated: 0,
        });
        let engine = Engine::new(&config);
        let module = wasmi::Module::new(&engine, bytes);
        let module = module.map_err(|error| ModuleError::Bad(error.to_string()))?;
        let mut loaded = Self {
            engine,
            module,
            memory,
            instance: None,
            configured: None,
        };
        for needed in ["plugin_configure", "plugin_synchronize", "plugin_shutdown"] {
            if !loaded.has(needed) {
                return Err(ModuleError::Missing(needed));
            }
        }
        loaded.instance = Some(loaded.start(Instant::now() + START)?);
        Ok(loaded)
    }

    /// Whether it exports a function of this name.
    pub(crate) fn has(&self, function: &str) -> bool {
        let export = self.module.get_export(function);
        export.is_some_and(|export| export.func().is_some())
    }

    /// `plugin_configure`; later instances are configured alike.
    ///
    /// # Errors
    /// As [`Module::call`].
    pub(crate) fn configure(
        &mut self,
        request: Vec<u8>,
        deadline: Instant,
    ) -> Result<Vec<u8>, ModuleError> {
        let answer = self.call("plugin_configure", &request, deadline)?;
        self.configured = Some(request);
        Ok(answer)
    }

    /// Calls a function of the plugin; an empty answer is an empty message.
    ///
    /// # Errors
    /// The plugin's own error, or the reason why its instance was dropped.
    pub(crate) fn call(
        &mut self,
        function: &'static str,
        request: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, ModuleError> {
        // The caller used up its time waiting for other calls; that is not the instance's fault.
        if Instant::now() >= deadline {
            return Err(ModuleError::TimedOut(function.to_owned()));
        }
        let mut running = match self.instance.take() {
            Some(running) => running,
            None => self.again(deadline)?,
        };
        let answer = running.ask(function, request, deadline);
        if answer.as_ref().err().is_none_or(ModuleError::is_answer) {
            self.instance = Some(running);
        }
        answer
    }

    fn again(&self, deadline: Instant) -> Result<Running, ModuleError> {
        say(
            "warning",
            "a new instance of the module is made, which remembers nothing",
        );
        let mut running = self.start(deadline.min(Instant::now() + START))?;
        if let Some(request) = &self.configured {
            running.ask("plugin_configure", request, deadline)?;
        }
        Ok(running)
    }

    fn start(&self, deadline: Instant) -> Result<Running, ModuleError> {
        let bad = |error: wasmi::Error| ModuleError::Bad(error.to_string());
        let tables = self.memory / SHARE_OF_TABLES;
        let limits = StoreLimitsBuilder::new()
            .memory_size(self.memory - tables)
            .memories(1)
            .tables(TABLES)
            .table_elements(tables / TABLES / ELEMENT)
            .instances(1)
            .build();
        let mut store = Store::new(&self.engine, State::new(limits, deadline));
        store.limiter(|state| &mut state.limits);
        store.set_fuel(SLICE).map_err(bad)?;
        let mut linker = Linker::new(&self.engine);
        host::link(&mut linker, &self.module).map_err(bad)?;
        let instance = linker.instantiate_and_start(&mut store, &self.module);
        let instance = instance.map_err(bad)?;
        let memory = instance
            .get_export(&store, "memory")
            .and_then(Extern::into_memory);
        let memory = memory.ok_or(ModuleError::Missing("memory"))?;
        let malloc = instance.get_typed_func(&store, "malloc");
        let free = instance.get_typed_func(&store, "free");
        let mut running = Running {
            malloc: malloc.map_err(|_| ModuleError::Missing("malloc"))?,
            free: free.map_err(|_| ModuleError::Missing("free"))?,
            memory,
            instance,
            store,
        };
        if let Ok(initialize) = instance.get_typed_func::<(), ()>(&running.store, "_initialize") {
            match running.run("_initialize", initialize, ()) {
                Err(ModuleError::Failed { why, .. }) if why == exited(0) => {}
                initialized => initialized?,
            }
        }
        let version = instance.get_typed_func::<(), u64>(&running.store, "plugin_api_version");
        let version = version.map_err(|_| ModuleError::Missing("plugin_api_version"))?;
        match running.run("plugin_api_version", version, ())? {
            API_VERSION => Ok(running),
            other => Err(ModuleError::Version(other)),
        }
    }
}

fn exited(code: i32) -> String {
    format!("it has exited with code {code}")
}

impl Running {
    fn ask(
        &mut self,
        function: &'static str,
        request: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, ModuleError> {
        let failed = |why: &str| ModuleError::Failed {
            function: function.to_owned(),
            why: why.to_owned(),
        };
        self.store.data_mut().deadline = deadline;
        let called = self
            .instance
            .get_typed_func::<(u32, u32), u64>(&self.store, function);
        let called = called.map_err(|_| ModuleError::Missing(function))?;
        let length = u32::try_from(request.len()).map_err(|_| failed("the request is too long"))?;
        let mut at = 0;
        if length > 0 {
            at = self.run("malloc", self.malloc, length)?;
            let put = self.memory.write(&mut self.store, at as usize, request);
            put.map_err(|_| failed("malloc answers an address outside of its memory"))?;
        }
        let answer = self.run(function, called, (at, length))?;
        let request_at = at;
        let (at, length) = ((answer >> 32) as u32, (answer & 0x7fff_ffff) as u32);
        let is_error = answer & (1 << 31) != 0;
        if length > LONGEST {
            return Err(failed("the answer is longer than 4 MiB"));
        }
        let mut bytes = vec![0; length as usize];
        let read = self.memory.read(&self.store, at as usize, &mut bytes);
        read.map_err(|_| failed("the answer is outside of its memory"))?;
        // Only now: the answer may be at the address of the request.
        if request_at != 0 {
            self.run("free", self.free, request_at)?;
        }
        if at != 0 && at != request_at {
            self.run("free", self.free, at)?;
        }
        if is_error {
            Err(ModuleError::Refused(
                String::from_utf8_lossy(&bytes).into_owned(),
            ))
        } else {
            Ok(bytes)
        }
    }

    /// Runs a function in slices, until it returns or its deadline has passed.
    fn run<P: WasmParams, R: WasmResults>(
        &mut self,
        name: &str,
        function: TypedFunc<P, R>,
        arguments: P,
    ) -> Result<R, ModuleError> {
        let reported = |error: &wasmi::Error| match error.kind() {
            ErrorKind::I32ExitStatus(code) => ModuleError::Failed {
                function: name.to_owned(),
                why: exited(*code),
            },
            _ if error.downcast_ref::<TimedOut>().is_some() => {
                ModuleError::TimedOut(name.to_owned())
            }
            _ => ModuleError::Failed {
                function: name.to_owned(),
                why: error.to_string(),
            },
        };
        self.store.set_fuel(SLICE).map_err(|e| reported(&e))?;
        let mut call = function
            .call_resumable(&mut self.store, arguments)
            .map_err(|e| reported(&e))?;
        loop {
            call = match call {
                TypedResumableCall::Finished(results) => return Ok(results),
                TypedResumableCall::HostTrap(trap) => return Err(reported(trap.host_error())),
                TypedResumableCall::OutOfFuel(_)
                    if Instant::now() >= self.store.data().deadline =>
                {
                    return Err(ModuleError::TimedOut(name.to_owned()));
                }
                TypedResumableCall::OutOfFuel(more) => {
                    let fuel = more.required_fuel().max(SLICE);
                    self.store.set_fuel(fuel).map_err(|e| reported(&e))?;
                    more.resume(&mut self.store).map_err(|e| reported(&e))?
                }
            };
        }
    }
}

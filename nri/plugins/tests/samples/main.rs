//! Runs each sample plugin as a program, with the runtime side of the crate over a real socket.

mod differ;
mod go;
mod hooks;
mod injectors;
mod loggers;
mod programs;
mod validators;
mod world;

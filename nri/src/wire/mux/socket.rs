//! The socket below a trunk.

use std::io;

use tokio::net::UnixStream;

#[cfg(feature = "sim")]
use nri_sim::Memory;

#[derive(Debug)]
pub enum Socket {
    Unix(UnixStream),
    #[cfg(feature = "sim")]
    Memory(Memory),
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

#[cfg(feature = "sim")]
impl From<Memory> for Socket {
    fn from(memory: Memory) -> Self {
        Self::Memory(memory)
    }
}

impl Socket {
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.readable().await,
            #[cfg(feature = "sim")]
            Self::Memory(memory) => {
                memory.readable().await;
                Ok(())
            }
        }
    }

    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.try_read(buffer),
            #[cfg(feature = "sim")]
            Self::Memory(memory) => memory.try_read(buffer),
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.writable().await,
            #[cfg(feature = "sim")]
            Self::Memory(memory) => {
                memory.writable().await;
                Ok(())
            }
        }
    }

    pub(super) fn try_write_vectored(&self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.try_write_vectored(parts),
            #[cfg(feature = "sim")]
            Self::Memory(memory) => {
                let parts: Vec<_> = parts.iter().map(|part| &**part).collect();
                memory.try_write(&parts.concat())
            }
        }
    }

    /// Ends both directions: our reader ends, and the peer is notified.
    pub(super) fn shutdown(&self) {
        match self {
            Self::Unix(stream) => {
                let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Both);
            }
            #[cfg(feature = "sim")]
            Self::Memory(memory) => memory.shutdown(),
        }
    }
}

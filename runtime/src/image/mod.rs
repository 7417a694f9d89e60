//! Images: references, pull, import, unpack, store, mounts.

//! NRI as a library.

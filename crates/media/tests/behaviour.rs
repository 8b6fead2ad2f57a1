//! Behaviour through the public interface.

#[path = "behaviour/goldens.rs"]
mod goldens;

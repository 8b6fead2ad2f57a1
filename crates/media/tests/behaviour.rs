//! Behaviour through the public interface.

#[path = "behaviour/animations.rs"]
mod animations;
#[path = "behaviour/configs.rs"]
mod configs;
#[path = "behaviour/decoding.rs"]
mod decoding;
#[path = "behaviour/ffmpeg.rs"]
mod ffmpeg;
#[path = "behaviour/goldens.rs"]
mod goldens;

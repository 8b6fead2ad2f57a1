//! Each operation against an expectation that the test computes, and what the sanitizer finds.

mod attention;
mod dense_attention;
mod elementwise;
mod experts;
mod fused;
mod fused_attention;
mod linear;
mod low_rank;
mod memories;
mod memory;
mod positions;
mod recurrent;
mod sanitizer;

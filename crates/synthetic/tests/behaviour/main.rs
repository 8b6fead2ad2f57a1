//! What is made: it is the model it says, it computes, and it survives being saved.

mod saving;
mod shapes;
mod values;

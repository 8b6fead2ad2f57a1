//! Small files built here.

//! Grammars, schemas and tool-call formats through the public API.

mod common;
mod costly_grammars;
mod gbnf;
mod grammars;
mod schemas;
mod tool_formats;
mod vocabularies;

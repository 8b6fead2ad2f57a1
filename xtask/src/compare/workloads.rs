//! The workloads that both engines run.

/// A workload: its argument on both command lines, its display name, and its points in the figure.
#[derive(Debug)]
pub struct Workload {
    pub name: &'static str,
    pub display_name: &'static str,
    pub panels: &'static [(Panel, f64)],
}

/// A panel of the figure, named by its x axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Panel {
    PromptTokens,
    Depth,
    Sequences,
}

impl Workload {
    /// Tokens of the prompt and of the reply, if `llama-bench` has this workload: prompts, and
    /// decoding of one sequence at depth 0.
    pub fn llama_bench_tokens(&self) -> Option<(usize, usize)> {
        let (kind, size) = self.name.split_once(':')?;
        match kind {
            "prompt" => Some((size.parse().ok()?, 0)),
            _ => Some((0, size.strip_suffix("@1")?.parse().ok()?)),
        }
    }
}

use Panel::{Depth, PromptTokens, Sequences};

/// Decoding needs a prompt of at least one token; that case is called depth 0.
pub const FULL: &[Workload] = &[
    Workload {
        name: "prompt:32",
        display_name: "prompt of 32",
        panels: &[(PromptTokens, 32.0)],
    },
    Workload {
        name: "prompt:512",
        display_name: "prompt of 512",
        panels: &[(PromptTokens, 512.0)],
    },
    Workload {
        name: "prompt:2048",
        display_name: "prompt of 2,048",
        panels: &[(PromptTokens, 2048.0)],
    },
    Workload {
        name: "decode:64@1",
        display_name: "decode at depth 0",
        panels: &[(Depth, 0.0), (Sequences, 1.0)],
    },
    Workload {
        name: "decode:64@2048",
        display_name: "decode at depth 2,048",
        panels: &[(Depth, 2048.0)],
    },
    Workload {
        name: "decode:32@1x4",
        display_name: "decode of 4 sequences",
        panels: &[(Sequences, 4.0)],
    },
    Workload {
        name: "decode:32@1x8",
        display_name: "decode of 8 sequences",
        panels: &[(Sequences, 8.0)],
    },
    Workload {
        name: "decode:32@1x16",
        display_name: "decode of 16 sequences",
        panels: &[(Sequences, 16.0)],
    },
];

pub const QUICK: &[Workload] = &[
    Workload {
        name: "prompt:512",
        display_name: "prompt of 512",
        panels: &[(PromptTokens, 512.0)],
    },
    Workload {
        name: "decode:32@1",
        display_name: "decode at depth 0",
        panels: &[(Depth, 0.0), (Sequences, 1.0)],
    },
    Workload {
        name: "decode:16@1x8",
        display_name: "decode of 8 sequences",
        panels: &[(Sequences, 8.0)],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_and_single_decoding_suit_llama_bench() {
        let tokens = FULL.iter().map(Workload::llama_bench_tokens);
        let expected = [
            Some((32, 0)),
            Some((512, 0)),
            Some((2048, 0)),
            Some((0, 64)),
            None,
            None,
            None,
            None,
        ];
        assert!(tokens.eq(expected));
    }
}

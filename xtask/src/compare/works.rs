//! What both engines are asked to do.

/// One work: as both programs read it, as people do, and where it stands in the figure.
#[derive(Debug)]
pub struct Work {
    pub name: &'static str,
    pub shown: &'static str,
    pub panels: &'static [(Panel, f64)],
}

/// By the x axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Panel {
    PromptTokens,
    Depth,
    Sequences,
}

use Panel::{Depth, PromptTokens, Sequences};

/// A decode begins with a prompt, if only of one token: that is what depth 0 is called.
pub const WHOLE: &[Work] = &[
    Work {
        name: "prompt:32",
        shown: "prompt of 32",
        panels: &[(PromptTokens, 32.0)],
    },
    Work {
        name: "prompt:512",
        shown: "prompt of 512",
        panels: &[(PromptTokens, 512.0)],
    },
    Work {
        name: "prompt:2048",
        shown: "prompt of 2,048",
        panels: &[(PromptTokens, 2048.0)],
    },
    Work {
        name: "decode:64@1",
        shown: "decode at depth 0",
        panels: &[(Depth, 0.0), (Sequences, 1.0)],
    },
    Work {
        name: "decode:64@2048",
        shown: "decode at depth 2,048",
        panels: &[(Depth, 2048.0)],
    },
    Work {
        name: "decode:32@1x4",
        shown: "decode of 4 sequences",
        panels: &[(Sequences, 4.0)],
    },
    Work {
        name: "decode:32@1x8",
        shown: "decode of 8 sequences",
        panels: &[(Sequences, 8.0)],
    },
    Work {
        name: "decode:32@1x16",
        shown: "decode of 16 sequences",
        panels: &[(Sequences, 16.0)],
    },
];

pub const QUICK: &[Work] = &[
    Work {
        name: "prompt:512",
        shown: "prompt of 512",
        panels: &[(PromptTokens, 512.0)],
    },
    Work {
        name: "decode:32@1",
        shown: "decode at depth 0",
        panels: &[(Depth, 0.0), (Sequences, 1.0)],
    },
    Work {
        name: "decode:16@1x8",
        shown: "decode of 8 sequences",
        panels: &[(Sequences, 8.0)],
    },
];

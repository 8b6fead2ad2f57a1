//! Runs the programs of `judges/`: each compares Loquat with a reference implementation, in a
//! virtual environment of this checkout.

use std::path::Path;

use super::{Context, FULL_VARIABLE, Note};
use crate::command::program;
use crate::error::Error;
use crate::packages::Python;

/// Each program's docstring says what it checks.
const JUDGES: &[&str] = &[
    "mistral_rendering",
    "mistral_parsing",
    "harmony_rendering",
    "harmony_parsing",
    "structured",
    "converted",
    "adapters",
    "llama_server",
];

const PYTHON: Python = Python {
    requirements: "judges/requirements.txt",
    folder: "target/judges",
    variables: &[],
};
/// peft with torch, which is gigabytes: only with `--full`.
const PEFT: Python = Python {
    requirements: "judges/peft.txt",
    folder: "target/judges-peft",
    variables: &[],
};
/// The folder of the programs to judge; without it `judges/loquat.py` builds them.
const PROGRAMS_VARIABLE: &str = "LOQUAT_PROGRAMS";
/// Relative to the root.
const VOCABULARIES: &str = "target/judges/vocabularies";
/// Where openai-harmony looks for vocabularies before it downloads them.
const VOCABULARIES_VARIABLE: &str = "TIKTOKEN_ENCODINGS_BASE";

const CORPUS: &str = "../shared/templates";
const NO_CORPUS: &str = "real templates: NOT CHECKED (../shared is missing)";

pub fn install(root: &Path) -> Result<(), Error> {
    PYTHON.install(root).map(drop)
}

/// Runs every judge, even after one fails.
pub fn run(context: &Context) -> Result<Note, Error> {
    let root = context.root;
    let python = PYTHON.install(root)?;
    let vocabularies = root.join(VOCABULARIES);
    let programs = context.build.programs()?;
    let judge = |name: &str| {
        program(root, &python, &[format!("judges/{name}.py")])
            .env(PROGRAMS_VARIABLE, programs)
            .env(VOCABULARIES_VARIABLE, &vocabularies)
            .env(FULL_VARIABLE, if context.is_full { "1" } else { "" })
            .run()
    };
    program(root, &python, &["judges/vocabulary.py", VOCABULARIES]).run()?;
    let mut verdicts: Vec<_> = JUDGES.iter().map(|name| judge(name)).collect();
    if context.is_full {
        let python = PEFT.install(root)?;
        let adapters = program(root, &python, &["judges/adapters.py", "peft"]);
        verdicts.push(adapters.env(PROGRAMS_VARIABLE, programs).run());
    }
    verdicts.into_iter().collect::<Result<(), Error>>()?;
    let has_corpus = root.join(CORPUS).is_dir();
    Ok((!has_corpus).then(|| NO_CORPUS.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_judge_has_its_program() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../judges");
        for name in JUDGES {
            assert!(folder.join(format!("{name}.py")).is_file(), "{name}");
        }
    }
}

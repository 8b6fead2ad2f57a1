//! A program as text: `loquat inspect --program`.

use std::fmt;

use loquat_session::KvFormat;

use crate::decode::can_record;
use crate::device::DeviceError;
use crate::execute::Execution;
use crate::lower::{Buffers, Instruction, KvLayout, Program, Sizes};
use crate::ops::{Address, Format, PAGE, Step};

/// What a session's steps launch, and between which buffers. Its text has a line for each buffer
/// and each operation.
pub struct ProgramListing {
    pub(crate) device: String,
    pub(crate) format: Format,
    pub(crate) kv_format: KvFormat,
    /// Why the fast path does not run the model, if it does not.
    pub(crate) not_fast: Option<&'static str>,
    pub(crate) sizes: Sizes,
    pub(crate) weight_bytes: u64,
    pub(crate) kv: KvLayout,
    pub(crate) program: Program,
    /// With numbers instead of addresses.
    pub(crate) buffers: Buffers,
    /// A vision tower runs besides.
    pub(crate) tower: bool,
}

impl ProgramListing {
    /// Whether the fast path runs the model.
    pub fn is_fast(&self) -> bool {
        self.not_fast.is_none()
    }

    /// Launches of a step of one row that emits one greedy token.
    fn launches(&self, tokens: u32) -> usize {
        let execution = Execution {
            step: Step {
                count: tokens,
                rows: 1,
                ..Step::default()
            },
            single_rows: u32::from(tokens == 1),
            tokens,
            tile_groups: self.program.tile_groups,
            adapters: None,
            runs: &[],
            emitted: &[],
        };
        let mut launches = 0;
        let mut count = |instructions: &[Instruction], execution: &Execution| {
            // Counting does not fail.
            let _ = execution.for_each(instructions, &mut |_, _| {
                launches += 1;
                Ok::<(), DeviceError>(())
            });
        };
        count(&self.program.forward, &execution);
        let mut emitted = execution;
        emitted.step.count = 1;
        if !self.program.reads_emitted {
            count(&self.program.readout, &emitted);
        }
        count(&self.program.greedy, &emitted);
        launches
    }

    fn write_buffers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.sizes.tokens;
        let total = self.buffers.bytes(tokens).0;
        writeln!(f, "\nbuffers: {total} bytes, of 4-byte words")?;
        for (buffer, width, bytes) in self.buffers.iter(tokens) {
            let vectors = bytes / (4 * width.max(1));
            let name = buffer.to_string();
            writeln!(f, "  {name:<15} {vectors} x {width} ({bytes} bytes)")?;
        }
        for group in 0..self.kv.groups() {
            let layers = self.kv.of_group(group).count();
            let bytes = self.kv.page_bytes(group);
            let reach = self.kv.reach(group);
            writeln!(
                f,
                "  pages of group {group}: {bytes} bytes for {PAGE} tokens of {layers} layers, \
                 reach {reach:?}"
            )?;
        }
        match self.kv.state_bytes() {
            0 => Ok(()),
            bytes => writeln!(f, "  state of a sequence: {bytes} bytes"),
        }
    }

    fn write_instruction(
        &self,
        f: &mut fmt::Formatter<'_>,
        instruction: &Instruction,
    ) -> fmt::Result {
        let sketch = instruction.op.sketch();
        let names = |addresses: &[Address]| {
            let mut names: Vec<String> = Vec::new();
            for address in addresses {
                let buffer = self.buffers.numbered(*address);
                let name = buffer.map(|buffer| buffer.to_string());
                names.extend(name.filter(|name| !names.contains(name)));
            }
            names.join(", ")
        };
        let (op, domain) = (instruction.op.name(), instruction.domain.name());
        let (shape, reads) = (&sketch.shape, names(&sketch.reads));
        let mut line = format!("  {op:<20} {domain:<11} {shape:<32} {reads}");
        let writes = names(&sketch.writes);
        if !writes.is_empty() {
            line += &format!(" -> {writes}");
        }
        if let Some(role) = instruction.role {
            line += &format!("  [{role}]");
        }
        if instruction.only_with_media {
            line += " if there are media";
        }
        writeln!(f, "{line}")
    }
}

impl fmt::Display for ProgramListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self.not_fast {
            None => "fast".to_owned(),
            Some(why) => format!("general, since {why}"),
        };
        let Sizes { tokens, context } = self.sizes;
        let weights = self.weight_bytes;
        writeln!(f, "device     {}", self.device)?;
        writeln!(f, "path       {path}")?;
        writeln!(
            f,
            "matrices   {}, {weights} bytes of weights",
            self.format.name()
        )?;
        writeln!(f, "KV         {}", self.kv_format)?;
        writeln!(f, "step       up to {tokens} tokens, context {context}")?;
        let mut one = self.launches(1);
        let mut recorded = "";
        if can_record(&self.program) {
            // Positions move on in the recorded step.
            one += 1;
            recorded = ", recorded as a graph and started ahead";
        }
        writeln!(
            f,
            "decoding   {one} launches for a token of a row{recorded}"
        )?;
        let prompt = tokens.min(context) as u32;
        let many = self.launches(prompt);
        writeln!(f, "prompt     {many} launches for {prompt} tokens of a row")?;
        if self.tower {
            writeln!(
                f,
                "tower      launches of its own for each picture, not listed"
            )?;
        }
        self.write_buffers(f)?;
        for (name, instructions) in self.program.parts() {
            writeln!(f, "\n{name}: {} operations", instructions.len())?;
            for instruction in instructions {
                self.write_instruction(f, instruction)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use loquat_session::{ModelSource, SessionOptions};
    use loquat_synthetic::{Container, Recipe};
    use loquat_testkit::goldens;

    use super::*;
    use crate::interpret::Interpreter;
    use crate::open::{DeviceTraits, Draft};

    fn draft(source: &ModelSource, options: &SessionOptions) -> Draft {
        let traits = DeviceTraits {
            label: String::new(),
            memory_bytes: Some(1 << 30),
            has_fast_path: true,
        };
        Draft::new(source, options, traits).unwrap()
    }

    fn sources() -> Vec<ModelSource> {
        let recipe: Recipe = "llama-tiny:bf16".parse().unwrap();
        let model = recipe.make(Container::Safetensors, 7).unwrap();
        let checkpoint = model.checkpoint().unwrap();
        let fast = ModelSource {
            weights: checkpoint.bind().unwrap().into(),
            spec: checkpoint.spec.into(),
            paths: Vec::new(),
        };
        let folders = goldens::all().unwrap().into_iter();
        let others = folders.map(|folder| goldens::source(&folder).unwrap());
        std::iter::once(fast).chain(others).collect()
    }

    /// What a program launches, without addresses.
    fn launches(program: &Program) -> Vec<String> {
        let parts = program.parts().into_iter();
        let all = parts.flat_map(|(name, instructions)| {
            instructions.iter().map(move |instruction| {
                let (op, shape) = (instruction.op.name(), instruction.op.sketch().shape);
                let (domain, role) = (instruction.domain, instruction.role);
                format!("{name} {op} {shape} {domain:?} {role:?}")
            })
        });
        all.collect()
    }

    #[test]
    fn listing_is_the_program_of_sessions() {
        let options = SessionOptions {
            context: Some(64),
            max_sequences: 2,
            ..SessionOptions::default()
        };
        for (index, source) in sources().iter().enumerate() {
            let draft = draft(source, &options);
            let listing = draft.listing(source).unwrap();
            assert_eq!(listing.is_fast(), index == 0, "{}", source.spec.family);
            let device = Box::new(Interpreter::default());
            let session = draft.open(device, source, &options, &mut |_| {}).unwrap();
            assert_eq!(launches(&listing.program), launches(&session.program));
        }
    }

    #[test]
    fn every_operation_names_what_it_writes() {
        let options = SessionOptions::default();
        for source in &sources() {
            let listing = draft(source, &options).listing(source).unwrap();
            for (_, instructions) in listing.program.parts() {
                for instruction in instructions {
                    let writes = instruction.op.sketch().writes;
                    let mut buffers = writes.iter().map(|at| listing.buffers.numbered(*at));
                    let is_cache = instruction.op.name() == "WriteKv";
                    let named = buffers.any(|buffer| buffer.is_some());
                    assert!(named || is_cache, "{:?}", instruction.op);
                }
            }
        }
    }
}

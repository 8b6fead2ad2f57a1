//! `loquat generate`: continue a text.

use loquat::{ContinuationRequest, ModelFiles, ReplyDecoder};
use loquat_engine::EngineOptions;
use loquat_text::format::FormatOverrides;

use crate::args::GenerateArgs;
use crate::error::CliError;
use crate::interrupts::Interrupts;
use crate::load::{self, LoadOptions, locate};
use crate::sampling::Sampling;
use crate::show::{ReasoningDisplay, print_answer, print_summary, printer, warn_of_reduced_limit};
use crate::{backends, prompt};

pub fn run(args: &GenerateArgs, verbose: bool) -> Result<(), CliError> {
    let interrupts = Interrupts::listen()?;
    let (store, words) = prompt::read_arguments(&args.source, &args.model, &args.prompt)?;
    // Before a download that an unknown backend or a missing file would waste.
    let backend = backends::select(&args.session.backend)?;
    let constraint = args.answer.constraint()?;
    let logprobs = args.output.logprobs()?;
    let prompt = match words.prompt {
        Some(prompt) => prompt,
        None => prompt::from_stdin()?.ok_or(CliError::NoPrompt)?,
    };
    let files = ModelFiles::open(&locate(
        &store,
        &args.source.choice(words.model.as_deref()),
    )?)?;
    let context = files.chat_context(None, FormatOverrides::default())?;
    let tokenizer = context.tokenizer().clone();
    let sampling = Sampling::from_config(&files.generation_config()?)?;
    let sampling = sampling.with_flags(&args.output.sampling, &tokenizer)?;
    tracing::info!("sampling: {}", sampling.describe());
    let flag = constraint.as_ref().map(|constraint| constraint.flag);
    let request = ContinuationRequest {
        sampling: sampling.params,
        stop: args.output.stop.clone(),
        constraint: constraint.map(|constraint| constraint.source),
        logprobs,
        ignore_eos: args.ignore_eos,
        suffix: args.suffix.clone(),
        ..ContinuationRequest::new(prompt)
    };
    // Before the weights are loaded, which an invalid request does not need.
    let request = match (request.lower(&context), flag) {
        (Err(loquat::Error::Grammar(source)), Some(flag)) => {
            return Err(CliError::Grammar { flag, source });
        }
        (lowered, _) => lowered?,
    };
    if request.prompt.is_empty() {
        return Err(CliError::NoPrompt);
    }

    let options = LoadOptions {
        backend,
        session: args.session.options(1),
        engine: EngineOptions {
            speculation: args.speculation.options(),
            ..EngineOptions::default()
        },
        adapters: load::adapters(&store, &files, &args.adapters.files)?,
    };
    let model = load::model(&files, context, options)?;
    let is_constrained = flag.is_some();
    let max_tokens = args.output.max_tokens.map(usize::from);
    let answer = model.submit(request, ReplyDecoder::plain_text(), max_tokens)?;
    warn_of_reduced_limit(args.output.max_tokens, &answer);
    let form = args.output.output;
    let hidden = ReasoningDisplay::Hidden;
    let mut printer = printer(form, hidden, &tokenizer, logprobs.is_some());
    let transcript = print_answer(answer, &interrupts, printer.as_mut())?;
    print_summary(&transcript, model.token_limit(), is_constrained, verbose);
    match transcript.finish {
        Some(_) => Ok(()),
        None => Err(CliError::Interrupted),
    }
}

//! A tokenizer out of `tokenizer.json` and the configuration files beside it.

use std::path::{Path, PathBuf};

use loquat_weights::{MAX_CONFIG_BYTES, MAX_VOCABULARY_BYTES, read_side_file};
use serde_json::Value;
use tokenizers::{Encoding, PostProcessor, Token};

use crate::end_tokens;
use crate::fim::FimIds;
use crate::tokenizer::{Encoder, LibraryEncoder, TokenizerData};
use crate::tokenizer_limits::{self, without_panics};
use crate::vocabulary::{Spelling, TokenKind, Vocabulary, parse_byte_token};
use crate::{Result, TextError};

/// Far above every real vocabulary. A larger id means a damaged file and would cost its size in
/// memory.
const HIGHEST_ID: u32 = 1 << 24;

/// Loads a tokenizer from its folder or from the `tokenizer.json` in it.
pub(crate) fn load(dir_or_file: &Path) -> Result<TokenizerData> {
    let (dir, file) = if dir_or_file.is_dir() {
        (dir_or_file.to_owned(), dir_or_file.join("tokenizer.json"))
    } else {
        let parent = dir_or_file.parent().unwrap_or(Path::new(""));
        (parent.to_owned(), dir_or_file.to_owned())
    };
    let tokenizer = read_tokenizer(&file)?;
    let settings = Settings::read(&dir)?;
    let decoder = Decoder::from_tokenizer(&tokenizer)?;
    let vocabulary = vocabulary(&tokenizer, decoder.spelling, &file)?;
    let token = |name: &str| {
        settings
            .token(name)
            .and_then(|text| tokenizer.token_to_id(text))
    };
    let (bos, eos, pad) = (token("bos_token"), token("eos_token"), token("pad_token"));

    let (mut prefix, mut suffix) = bounds(&tokenizer, &file)?;
    if prefix.is_empty() && settings.flag("add_bos_token") {
        prefix.extend(bos);
    }
    if suffix.is_empty() && settings.flag("add_eos_token") {
        suffix.extend(eos);
    }

    let special = |name: &str| {
        let id = tokenizer.token_to_id(name)?;
        (vocabulary.kind(id) == TokenKind::Special).then_some(id)
    };
    let eos_ids = end_tokens::collect(settings.end_tokens.iter().copied().chain(eos), special);
    let encoder = LibraryEncoder::new(tokenizer).map_err(|source| TextError::Tokenizer {
        origin: file.display().to_string(),
        source,
    })?;
    Ok(TokenizerData {
        encoder: Encoder::Library(Box::new(encoder)),
        vocabulary,
        prefix,
        suffix,
        bos,
        eos,
        pad,
        eos_ids,
        strips_leading_space: decoder.strips_leading_space,
        fim: FimIds::default(),
    })
}

fn read_tokenizer(file: &Path) -> Result<tokenizers::Tokenizer> {
    let bytes = read_side_file(file, MAX_VOCABULARY_BYTES).map_err(|source| TextError::Read {
        path: file.to_owned(),
        source,
    })?;
    // The library panics on some damaged files, such as one whose merge is longer than every token.
    let parsed = tokenizer_limits::check(&bytes)
        .and_then(|()| without_panics(|| tokenizers::Tokenizer::from_bytes(&bytes)));
    parsed.map_err(|source| TextError::Tokenizer {
        origin: file.display().to_string(),
        source,
    })
}

/// The tokens that the post-processor adds before and after a text, found by processing a token
/// that no vocabulary has.
fn bounds(tokenizer: &tokenizers::Tokenizer, file: &Path) -> Result<(Vec<u32>, Vec<u32>)> {
    let Some(processor) = tokenizer.get_post_processor() else {
        return Ok((Vec::new(), Vec::new()));
    };
    let text = Token::new(u32::MAX, String::new(), (0, 0));
    let process = || processor.process(Encoding::from_tokens(vec![text], 0), None, true);
    let processed = without_panics(process).map_err(|source| TextError::Tokenizer {
        origin: file.display().to_string(),
        source,
    })?;
    let mut around = processed.get_ids().split(|id| *id == u32::MAX);
    let mut next = || around.next().unwrap_or_default().to_vec();
    Ok((next(), next()))
}

fn vocabulary(
    tokenizer: &tokenizers::Tokenizer,
    spelling: Spelling,
    file: &Path,
) -> Result<Vocabulary> {
    let ids = tokenizer.get_vocab(true);
    let highest = ids.values().copied().max().unwrap_or(0);
    if highest > HIGHEST_ID {
        return Err(TextError::BadField {
            field: format!("{}: model.vocab", file.display()),
            found: format!("naming token id {highest}"),
            wanted: format!("without ids above {HIGHEST_ID}"),
        });
    }
    let mut tokens = vec![("", TokenKind::Absent); highest as usize + 1];
    let mut set = |id: u32, token| {
        if let Some(slot) = tokens.get_mut(id as usize) {
            *slot = token;
        }
    };
    for (text, id) in &ids {
        let kind = match spelling {
            Spelling::Metaspace if parse_byte_token(text).is_some() => TokenKind::Byte,
            _ => TokenKind::Normal,
        };
        set(*id, (text, kind));
    }
    let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
    for (id, token) in added {
        let kind = if token.special {
            TokenKind::Special
        } else {
            TokenKind::Added
        };
        set(*id, (&token.content, kind));
    }
    Ok(Vocabulary::new(tokens.into_iter(), spelling))
}

/// The effect of the library's decoder.
struct Decoder {
    spelling: Spelling,
    strips_leading_space: bool,
}

impl Decoder {
    fn from_tokenizer(tokenizer: &tokenizers::Tokenizer) -> Result<Self> {
        let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or(Value::Null);
        let steps = match decoder.get("decoders") {
            Some(Value::Array(steps)) => steps.iter().collect(),
            _ => vec![&decoder],
        };
        let mut found = Self {
            spelling: Spelling::Metaspace,
            strips_leading_space: false,
        };
        let mut spelled = false;
        for step in steps {
            match step.get("type").and_then(Value::as_str) {
                Some("ByteLevel") => (found.spelling, spelled) = (Spelling::ByteLevel, true),
                Some("Metaspace") => {
                    spelled = true;
                    let scheme = step.get("prepend_scheme").and_then(Value::as_str);
                    found.strips_leading_space |= scheme != Some("never");
                }
                Some("Replace" | "ByteFallback") => spelled = true,
                Some("Strip") => {
                    let start = step.get("start").and_then(Value::as_u64);
                    found.strips_leading_space |= start > Some(0);
                }
                Some("Fuse") => {}
                other => return Err(unsupported_decoder(other.unwrap_or("none"))),
            }
        }
        if spelled {
            Ok(found)
        } else {
            Err(unsupported_decoder("none"))
        }
    }
}

fn unsupported_decoder(kind: &str) -> TextError {
    TextError::UnsupportedDecoder {
        kind: kind.to_owned(),
        known: "ByteLevel, Metaspace, or a Sequence of Replace, ByteFallback, Fuse and Strip"
            .to_owned(),
    }
}

/// The configuration files beside the tokenizer, each optional.
struct Settings {
    tokenizer_config: Value,
    special_tokens_map: Value,
    end_tokens: Vec<u32>,
}

impl Settings {
    fn read(dir: &Path) -> Result<Self> {
        let configs = ["generation_config.json", "config.json"];
        let mut end_tokens = Vec::new();
        for name in configs {
            end_tokens.extend(end_tokens::named_in(&read_json(dir.join(name))?));
        }
        Ok(Self {
            tokenizer_config: read_json(dir.join("tokenizer_config.json"))?,
            special_tokens_map: read_json(dir.join("special_tokens_map.json"))?,
            end_tokens,
        })
    }

    /// A token's text, written as a string or as an object with `content`.
    fn token(&self, name: &str) -> Option<&str> {
        let files = [&self.tokenizer_config, &self.special_tokens_map];
        files.into_iter().find_map(|file| {
            let token = file.get(name)?;
            token.as_str().or_else(|| token.get("content")?.as_str())
        })
    }

    fn flag(&self, name: &str) -> bool {
        self.tokenizer_config.get(name).and_then(Value::as_bool) == Some(true)
    }
}

/// A file's JSON, or null if the file does not exist.
pub(crate) fn read_json(path: PathBuf) -> Result<Value> {
    let text = match read_side_file(&path, MAX_CONFIG_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(source) => return Err(TextError::Read { path, source }),
    };
    serde_json::from_slice(&text).map_err(|source| TextError::Json { path, source })
}

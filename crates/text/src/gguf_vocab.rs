//! A tokenizer out of the `tokenizer.ggml.*` fields of a GGUF file.

use std::collections::HashMap;

use loquat_weights::gguf::Metadata;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::end_tokens;
use crate::fim::FimIds;
use crate::pretokenizer::{self, PreTokenizer};
use crate::sentencepiece::{SentencePiece, SentencePieceOptions, VocabPiece};
use crate::tokenizer::{Encoder, LibraryEncoder, TokenizerData};
use crate::vocabulary::{Spelling, TokenKind, Vocabulary};
use crate::{Result, TextError};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const EOT: &str = "tokenizer.ggml.eot_token_id";
const EOM: &str = "tokenizer.ggml.eom_token_id";
const PAD: &str = "tokenizer.ggml.padding_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// By their name, and by an earlier one.
const FIM_PREFIX: [&str; 2] = [
    "tokenizer.ggml.fim_pre_token_id",
    "tokenizer.ggml.prefix_token_id",
];
const FIM_SUFFIX: [&str; 2] = [
    "tokenizer.ggml.fim_suf_token_id",
    "tokenizer.ggml.suffix_token_id",
];
const FIM_MIDDLE: [&str; 2] = [
    "tokenizer.ggml.fim_mid_token_id",
    "tokenizer.ggml.middle_token_id",
];
const FIM_REPOSITORY: &str = "tokenizer.ggml.fim_rep_token_id";
const FIM_FILE: &str = "tokenizer.ggml.fim_sep_token_id";

/// Builds the tokenizer a file describes.
pub(crate) fn load(metadata: &Metadata) -> Result<TokenizerData> {
    let fields = Fields(metadata);
    let model = fields.required_str(MODEL)?;
    let vocab = GgufVocab::read(fields)?;
    match model {
        "gpt2" => byte_level(&vocab, fields),
        "llama" => sentencepiece(&vocab, fields),
        other => Err(TextError::UnknownTokenizerModel {
            name: other.to_owned(),
            known: "gpt2, llama".to_owned(),
        }),
    }
}

/// The fields that both kinds of tokenizer use.
struct GgufVocab<'a> {
    tokens: &'a [String],
    kinds: Vec<TokenKind>,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    unknown: Option<u32>,
    eos_ids: Vec<u32>,
    add_bos: Option<bool>,
    add_eos: Option<bool>,
    fim: FimIds,
}

impl<'a> GgufVocab<'a> {
    fn read(fields: Fields<'a>) -> Result<Self> {
        let tokens = fields.required_strings(TOKENS)?;
        let kinds = fields.kinds(tokens.len())?;
        let id = |field| fields.token_id(field, tokens.len());
        let (bos, eos, pad, unknown) = (id(BOS)?, id(EOS)?, id(PAD)?, id(UNKNOWN)?);
        let either =
            |fields: &[&'static str; 2]| Ok::<_, TextError>(id(fields[0])?.or(id(fields[1])?));
        let named = [eos, id(EOT)?, id(EOM)?];
        let with_ids = tokens.iter().zip(&kinds).zip(0u32..);
        let specials: HashMap<&str, u32> = with_ids
            .filter(|((_, kind), _)| **kind == TokenKind::Special)
            .map(|((token, _), id)| (token.as_str(), id))
            .collect();
        let eos_ids = end_tokens::collect(named.into_iter().flatten(), |name| {
            specials.get(name).copied()
        });
        Ok(Self {
            tokens,
            kinds,
            bos,
            eos,
            pad,
            unknown,
            eos_ids,
            add_bos: fields.0.bool(ADD_BOS),
            add_eos: fields.0.bool(ADD_EOS),
            fim: FimIds {
                prefix: either(&FIM_PREFIX)?,
                suffix: either(&FIM_SUFFIX)?,
                middle: either(&FIM_MIDDLE)?,
                repository: id(FIM_REPOSITORY)?,
                file: id(FIM_FILE)?,
            },
        })
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, TokenKind)> + '_ {
        let texts = self.tokens.iter().map(String::as_str);
        texts.zip(self.kinds.iter().copied())
    }

    fn parts(&self, encoder: Encoder, spelling: Spelling, adds_bos: bool) -> TokenizerData {
        let bound = |token: Option<u32>, add: bool| token.filter(|_| add).into_iter().collect();
        TokenizerData {
            encoder,
            vocabulary: Vocabulary::new(self.iter(), spelling),
            prefix: bound(self.bos, self.add_bos.unwrap_or(adds_bos)),
            suffix: bound(self.eos, self.add_eos.unwrap_or(false)),
            bos: self.bos,
            eos: self.eos,
            pad: self.pad,
            eos_ids: self.eos_ids.clone(),
            strips_leading_space: false,
            fim: self.fim,
        }
    }
}

fn byte_level(vocab: &GgufVocab<'_>, fields: Fields<'_>) -> Result<TokenizerData> {
    let pre = pretokenizer::find(fields.required_str(PRE)?)?;
    let failed = |source| TextError::Tokenizer {
        origin: "the GGUF file's byte-level vocabulary".to_owned(),
        source,
    };
    let ids: Vocab = vocab.tokens.iter().cloned().zip(0u32..).collect();
    let merges = split_merges(fields.required_strings(MERGES)?, &ids)?;
    let bpe = BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(failed)?;
    let mut tokenizer = tokenizers::Tokenizer::new(bpe);
    if pre.composes {
        tokenizer.with_normalizer(Some(NFC)).map_err(failed)?;
    }
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer(pre).map_err(failed)?));
    let matched = vocab.iter().filter_map(|(text, kind)| match kind {
        TokenKind::Special => Some(AddedToken::from(text, true)),
        TokenKind::Added => Some(AddedToken::from(text, false).normalized(false)),
        _ => None,
    });
    tokenizer.add_tokens(matched).map_err(failed)?;
    let encoder = LibraryEncoder::new(tokenizer).map_err(failed)?;
    let encoder = Encoder::Library(Box::new(encoder));
    Ok(vocab.parts(encoder, Spelling::ByteLevel, pre.adds_bos))
}

/// `"Ġ t"` → `("Ġ", "t")`; the first character may itself be a space.
fn split_merges(merges: &[String], ids: &Vocab) -> Result<Merges> {
    let split = |(index, merge): (usize, &String)| {
        let bad = || TextError::BadField {
            field: format!("{MERGES}[{index}]"),
            found: format!("{merge:?}"),
            wanted: "two tokens of the vocabulary that join to a third, with a space between"
                .to_owned(),
        };
        let first = merge.chars().next().ok_or_else(bad)?.len_utf8();
        let space = merge[first..].find(' ').ok_or_else(bad)? + first;
        let (left, right) = (&merge[..space], &merge[space + 1..]);
        if ids.contains_key(&format!("{left}{right}")) {
            Ok((left.to_owned(), right.to_owned()))
        } else {
            Err(bad())
        }
    };
    merges.iter().enumerate().map(split).collect()
}

fn pre_tokenizer(pre: &PreTokenizer) -> tokenizers::Result<Sequence> {
    let mut steps: Vec<PreTokenizerWrapper> = Vec::with_capacity(pre.splits.len() + 1);
    for pattern in pre.splits {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
        steps.push(split.into());
    }
    let bytes = ByteLevel::default()
        .add_prefix_space(false)
        .use_regex(false);
    steps.push(bytes.into());
    Ok(Sequence::new(steps))
}

fn sentencepiece(vocab: &GgufVocab<'_>, fields: Fields<'_>) -> Result<TokenizerData> {
    let missing = || TextError::MissingField {
        field: SCORES.to_owned(),
    };
    let scores = fields.0.f32s(SCORES).ok_or_else(missing)?;
    same_length(SCORES, scores.len(), vocab.tokens.len())?;
    // GGUF cannot express that a token swallows the space after it, as all of Phi-3's turn tokens
    // do. The model's name is the only hint left.
    let phi3 = ["phi-3", "phi3"];
    let name = fields.0.str("general.name").map(str::to_lowercase);
    let strips = name.is_some_and(|name| phi3.iter().any(|phi3| name.contains(phi3)));
    let pieces = vocab
        .iter()
        .zip(scores)
        .map(|((text, kind), score)| VocabPiece {
            text,
            score: *score,
            kind,
            strips_right: strips && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>"),
        });
    let add_space_prefix = fields.0.bool(ADD_SPACE_PREFIX).unwrap_or(true);
    let options = SentencePieceOptions {
        add_space_prefix,
        unknown: vocab.unknown,
    };
    let encoder = Encoder::SentencePiece(Box::new(SentencePiece::new(pieces, options)));
    Ok(TokenizerData {
        strips_leading_space: add_space_prefix,
        ..vocab.parts(encoder, Spelling::Metaspace, true)
    })
}

fn same_length(field: &str, found: usize, wanted: usize) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(TextError::BadField {
        field: field.to_owned(),
        found: format!("{found} entries long"),
        wanted: format!("as long as `{TOKENS}`, {wanted}"),
    })
}

/// Metadata with this crate's errors.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a Metadata);

impl<'a> Fields<'a> {
    fn required_str(self, field: &str) -> Result<&'a str> {
        let missing = || TextError::MissingField {
            field: field.to_owned(),
        };
        self.0.str(field).ok_or_else(missing)
    }

    fn required_strings(self, field: &str) -> Result<&'a [String]> {
        let missing = || TextError::MissingField {
            field: field.to_owned(),
        };
        self.0.strings(field).ok_or_else(missing)
    }

    fn token_id(self, field: &str, tokens: usize) -> Result<Option<u32>> {
        let Some(value) = self.0.u64(field) else {
            return Ok(None);
        };
        match u32::try_from(value) {
            Ok(id) if (id as usize) < tokens => Ok(Some(id)),
            _ => Err(TextError::BadField {
                field: field.to_owned(),
                found: value.to_string(),
                wanted: format!("a token id below {tokens}"),
            }),
        }
    }

    /// Token types as the format numbers them; a file without them has only normal tokens.
    fn kinds(self, tokens: usize) -> Result<Vec<TokenKind>> {
        let Some(types) = self.0.i32s(TYPES) else {
            return Ok(vec![TokenKind::Normal; tokens]);
        };
        same_length(TYPES, types.len(), tokens)?;
        let kind = |(index, number): (usize, &i32)| match number {
            1 => Ok(TokenKind::Normal),
            2 | 3 => Ok(TokenKind::Special),
            4 => Ok(TokenKind::Added),
            5 => Ok(TokenKind::Unused),
            6 => Ok(TokenKind::Byte),
            other => Err(TextError::BadField {
                field: format!("{TYPES}[{index}]"),
                found: other.to_string(),
                wanted: "1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused or 6 byte"
                    .to_owned(),
            }),
        };
        types.iter().enumerate().map(kind).collect()
    }
}

//! Embeddings of texts.

use loquat_engine::{GenerateRequest, Generation, Pooling};
use loquat_text::Special;

use crate::{Error, Model};

/// Special tokens in a text to embed are read as text.
const TEXT: Special = Special {
    add: true,
    parse: false,
};

impl Model {
    /// One vector of length 1 for each text: the mean over the text's hidden states. The dot
    /// product of two vectors is their cosine similarity.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), loquat::Error> {
    /// let model = loquat::Model::load("smollm2:135m")?;
    /// let vectors = model.embed(&["a cat", "a kitten"])?;
    /// let similarity: f32 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
    /// # Ok(())
    /// # }
    /// ```
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>, Error> {
        pollster::block_on(self.embed_async(texts))
    }

    /// [`embed`](Self::embed) without blocking the thread.
    pub async fn embed_async(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>, Error> {
        if self.engine().capabilities().hidden_size.is_none() {
            return Err(Error::NoEmbeddings {
                model: self.name().to_owned(),
            });
        }
        let mut vectors = Vec::with_capacity(texts.len());
        // A few at a time, so that they fill the engine's steps and leave its queue to others.
        for chunk in texts.chunks(16) {
            let generations = chunk
                .iter()
                .map(|text| self.submit_embedding(text.as_ref()));
            for generation in generations.collect::<Result<Vec<_>, _>>()? {
                let embedding = generation.collect().await?.embedding;
                vectors.push(normalize(embedding.unwrap_or_default()));
            }
        }
        Ok(vectors)
    }

    fn submit_embedding(&self, text: &str) -> Result<Generation, Error> {
        let prompt = self.chat_context().tokenizer().encode(text, TEXT)?;
        Ok(self.engine().submit(GenerateRequest {
            prompt,
            embed: Some(Pooling::Mean),
            adapters: self.adapters().to_vec(),
            ..GenerateRequest::default()
        })?)
    }
}

/// Scales a vector to length 1. A vector of zeros stays as it is.
pub fn normalize(mut vector: Vec<f32>) -> Vec<f32> {
    let squares = vector.iter().map(|value| f64::from(*value).powi(2));
    let length = squares.sum::<f64>().sqrt();
    if length > 0.0 {
        let scale = |value: &mut f32| *value = (f64::from(*value) / length) as f32;
        vector.iter_mut().for_each(scale);
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::normalize;

    #[test]
    fn vectors_are_scaled_to_length_one() {
        for (vector, expected) in [
            (vec![3.0, -4.0], vec![0.6, -0.8]),
            (vec![1e30, 0.0], vec![1.0, 0.0]),
            (vec![0.0, 0.0], vec![0.0, 0.0]),
        ] {
            assert_eq!(normalize(vector), expected);
        }
    }
}

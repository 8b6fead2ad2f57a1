//! What a spec's description is taken from, whatever the format.

use loquat_spec::{Attention, Dense, Experts, FeedForward, Inner, Mixer, ModelSpec, Reach};

pub(crate) struct Parts<'a> {
    pub spec: &'a ModelSpec,
    /// Every layer's.
    pub attentions: Vec<&'a Attention>,
    /// The one that says most of the others: it sees everything and knows positions.
    pub attention: &'a Attention,
    /// One that looks through a window.
    pub local: Option<&'a Attention>,
    pub dense: Option<&'a Dense>,
    pub experts: Option<&'a Experts>,
}

impl<'a> Parts<'a> {
    /// `None` for a spec that is not attention throughout.
    pub fn of(spec: &'a ModelSpec) -> Option<Self> {
        let attentions: Option<Vec<&Attention>> = spec
            .mixers()
            .map(|(_, mixer)| match mixer {
                Mixer::Attention(attention) => Some(attention),
                _ => None,
            })
            .collect();
        let attentions = attentions?;
        let general =
            |attention: &&&Attention| attention.reach == Reach::All && attention.rope.is_some();
        let local = |attention: &&&Attention| attention.reach != Reach::All;
        let fed = || {
            spec.branches()
                .filter_map(|(_, branch)| match &branch.inner {
                    Inner::FeedForward(feed_forward) => Some(feed_forward),
                    Inner::Mixer(_) => None,
                })
        };
        Some(Self {
            spec,
            attention: attentions.iter().find(general).or(attentions.first())?,
            local: attentions.iter().find(local).copied(),
            dense: fed().find_map(|feed_forward| match feed_forward {
                FeedForward::Dense(dense) => Some(dense),
                _ => None,
            }),
            experts: fed().find_map(|feed_forward| match feed_forward {
                FeedForward::Experts(experts) => Some(experts),
                _ => None,
            }),
            attentions,
        })
    }

    /// The window of those layers that have one.
    pub fn window(&self) -> Option<usize> {
        match self.local?.reach {
            Reach::Window(window) => Some(window),
            Reach::All | Reach::Chunk(_) => None,
        }
    }

    /// How much each block adds to the stream.
    pub fn residual_scale(&self) -> f32 {
        let mut blocks = self.spec.layers.iter().flat_map(|layer| &layer.blocks);
        blocks.next().map_or(1.0, |block| block.residual_scale)
    }
}

//! The parts of a spec that configs of every format describe.

use loquat_spec::{Attention, Dense, Experts, FeedForward, Inner, Mixer, ModelSpec, Reach};

pub(crate) struct Summary<'a> {
    pub spec: &'a ModelSpec,
    /// Every layer's.
    pub attentions: Vec<&'a Attention>,
    /// The one whose numbers go into the config: attends to everything and has a rope.
    pub attention: &'a Attention,
    /// The first windowed one.
    pub local: Option<&'a Attention>,
    pub dense: Option<&'a Dense>,
    pub experts: Option<&'a Experts>,
}

impl<'a> Summary<'a> {
    /// `None` for a spec with layers without attention.
    pub fn from_spec(spec: &'a ModelSpec) -> Option<Self> {
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

    /// The window of windowed layers.
    pub fn window(&self) -> Option<usize> {
        match self.local?.reach {
            Reach::Window(window) => Some(window),
            Reach::All | Reach::Chunk(_) => None,
        }
    }

    /// The blocks' residual scale.
    pub fn residual_scale(&self) -> f32 {
        let mut blocks = self.spec.layers.iter().flat_map(|layer| &layer.blocks);
        blocks.next().map_or(1.0, |block| block.residual_scale)
    }
}

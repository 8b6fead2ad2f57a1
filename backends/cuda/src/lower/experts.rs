//! Mixture of experts.

use loquat_session::OpenError;
use loquat_spec::{Experts, GroupScore, LayerRole as R, Role, Router, Scores, SharedExpert};

use super::buffers::Buffer;
use super::{LinearRoles, Lowering, Vectors};
use crate::ops::{
    Activate, ActivationFunction, Address, CombineExperts, ExpertLinear, MatrixRef, Route,
};

/// A token's experts and their weights.
#[derive(Clone, Copy)]
struct Routes {
    experts: Address,
    weights: Address,
}

impl Lowering<'_, '_> {
    pub(super) fn experts(
        &mut self,
        layer: usize,
        spec: &Experts,
        input: Vectors,
    ) -> Result<Vectors, OpenError> {
        let routes = self.route(layer, spec, input)?;
        let hidden = self.spec.hidden_size;
        let (top_k, size) = (spec.top_k, spec.expert.size);
        let gate = self.buffer(Buffer::ExpertGate, top_k * size);
        let weighed = if spec.weigh_input {
            routes.weights
        } else {
            Address::NONE
        };
        let (inputs, stack) = ((input.at, input.stride, 0), top_k);
        let first = if spec.expert.gated {
            R::ExpertGate
        } else {
            R::ExpertUp
        };
        self.expert_linear(
            layer,
            first,
            (routes.experts, weighed),
            inputs,
            (gate, stack),
        )?;
        let mut up = Vectors::NONE;
        if spec.expert.gated {
            up = self.buffer(Buffer::ExpertUp, top_k * size);
            let routed = (routes.experts, weighed);
            self.expert_linear(layer, R::ExpertUp, routed, inputs, (up, stack))?;
        }
        let gate_scale = if spec.expert.gated {
            spec.expert.gate_scale
        } else {
            1.0
        };
        self.activate(
            spec.expert.activation,
            gate_scale,
            [gate, up, gate],
            top_k * size,
        );
        let down = self.buffer(Buffer::ExpertDown, top_k * hidden);
        let inputs = (gate.at, size as u32, 1);
        let routed = (routes.experts, Address::NONE);
        self.expert_linear(layer, R::ExpertDown, routed, inputs, (down, stack))?;
        let out = self.buffer(Buffer::Branch, hidden);
        let combine = CombineExperts {
            input: down.at,
            out: out.at,
            weights: if spec.weigh_input {
                Address::NONE
            } else {
                routes.weights
            },
            out_stride: out.stride,
            len: hidden as u32,
            top_k: top_k as u32,
            reserved: 0,
        };
        self.push(combine, Some(Role::Layer(layer, R::ExpertDown)));
        if let Some(shared) = &spec.shared {
            let shared = self.shared_expert(layer, shared, input)?;
            self.add(out, Some((shared, 1.0)), out, hidden);
        }
        Ok(out)
    }

    fn route(&mut self, layer: usize, spec: &Experts, input: Vectors) -> Result<Routes, OpenError> {
        let router: &Router = &spec.router;
        let input = match &router.input {
            None => input,
            Some(reads) => {
                let stream = self.stream();
                let out = self.buffer(Buffer::RouterInput, self.spec.hidden_size);
                let role = Role::Layer(layer, R::RouterInput);
                let scales = [1.0, reads.scale];
                self.scaled_norm(Some(&reads.norm), role, (stream, out), scales)?;
                out
            }
        };
        let logits = self.buffer(Buffer::RouterLogits, spec.count);
        let roles = LinearRoles {
            matrix: Role::Layer(layer, R::Router),
            bias: Some(Role::Layer(layer, R::RouterBias)),
        };
        self.linear(roles, input, logits)?;
        let routes = Routes {
            experts: self.buffer(Buffer::Experts, spec.top_k).at,
            weights: self.buffer(Buffer::ExpertWeights, spec.top_k).at,
        };
        let groups = router.groups;
        let op = Route {
            logits: logits.at,
            correction: self
                .weights
                .optional(Role::Layer(layer, R::RouterCorrection))?,
            expert_scale: self.weights.optional(Role::Layer(layer, R::ExpertScale))?,
            experts: routes.experts,
            weights: routes.weights,
            count: spec.count as u32,
            top_k: spec.top_k as u32,
            sigmoid: u32::from(router.scores == Scores::Sigmoid),
            groups: groups.map_or(0, |groups| groups.count as u32),
            keep_groups: groups.map_or(0, |groups| groups.keep as u32),
            best_two: u32::from(groups.is_some_and(|groups| groups.score == GroupScore::BestTwo)),
            normalise: u32::from(router.normalise.is_some()),
            normalise_eps: router.normalise.unwrap_or(0.0),
            scale: router.scale,
            reserved: 0,
        };
        self.push(op, Some(Role::Layer(layer, R::Router)));
        Ok(routes)
    }

    /// A stack of matrices, each over the routes to its expert. The input is an address, a stride,
    /// and whether each route has its own.
    fn expert_linear(
        &mut self,
        layer: usize,
        role: R,
        (experts, weights): (Address, Address),
        (input, input_stride, input_per_route): (Address, u32, u32),
        (out, top_k): (Vectors, usize),
    ) -> Result<(), OpenError> {
        let stack = Role::Layer(layer, role);
        let matrix: MatrixRef = self.weights.stack(stack)?;
        let bias = match role.bias() {
            Some(bias) => self.weights.optional(Role::Layer(layer, bias))?,
            None => Address::NONE,
        };
        let op = ExpertLinear {
            matrix,
            input,
            out: out.at,
            bias,
            experts,
            weights,
            input_stride,
            top_k: top_k as u32,
            input_per_route,
            reserved: 0,
        };
        self.push(op, Some(stack));
        Ok(())
    }

    fn shared_expert(
        &mut self,
        layer: usize,
        shared: &SharedExpert,
        input: Vectors,
    ) -> Result<Vectors, OpenError> {
        let hidden = self.spec.hidden_size;
        let roles = [R::SharedGate, R::SharedUp];
        let inner = self.dense_inside(layer, &shared.dense, roles, input)?;
        let out = self.buffer(Buffer::Shared, hidden);
        self.layer_linear(layer, R::SharedDown, inner, out)?;
        if !shared.gated {
            return Ok(out);
        }
        let gate = self.buffer(Buffer::SharedGate, 1);
        self.layer_linear(layer, R::SharedRouter, input, gate)?;
        self.scalar_gate(gate, out, hidden);
        Ok(out)
    }

    /// `values *= sigmoid(gate)`, one gate per token.
    fn scalar_gate(&mut self, gate: Vectors, values: Vectors, len: usize) {
        let sigmoid = Activate {
            gate: gate.at,
            up: Address::NONE,
            out: gate.at,
            gate_stride: 1,
            up_stride: 0,
            out_stride: 1,
            len: 1,
            function: ActivationFunction::Sigmoid,
            scale: 1.0,
            alpha: 0.0,
            limit: 0.0,
            up_is_scalar: 0,
            reserved: 0,
        };
        self.push(sigmoid, None);
        let multiply = Activate {
            gate: values.at,
            up: gate.at,
            out: values.at,
            gate_stride: values.stride,
            up_stride: 1,
            out_stride: values.stride,
            len: len as u32,
            function: ActivationFunction::Identity,
            up_is_scalar: 1,
            ..sigmoid
        };
        self.push(multiply, None);
    }
}

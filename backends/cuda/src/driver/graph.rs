//! A recorded series of launches and copies that starts with one call.

use std::ptr;
use std::sync::Arc;

use super::context::{Context, Inner};
use super::error::DriverError;
use super::ffi::{CAPTURE_THREAD_LOCAL, Handle};

/// Recorded work, ready to start.
pub struct Graph {
    context: Arc<Inner>,
    executable: Handle,
    nodes: usize,
}

// SAFETY: the driver allows a graph on any thread, one at a time; launches are on one stream.
unsafe impl Send for Graph {}
// SAFETY: `Graph` has no method that changes it, and the driver locks launches.
unsafe impl Sync for Graph {}

impl Context {
    /// Records what `record` starts on the stream of this context, instead of running it. Only
    /// launches, asynchronous copies and fills can be recorded; anything else is an error.
    pub fn capture<E: From<DriverError>>(
        &self,
        record: impl FnOnce(&Self) -> Result<(), E>,
    ) -> Result<Graph, E> {
        self.inner.make_current()?;
        // SAFETY: the stream lives as long as the context.
        let code = unsafe {
            (self.inner.api().stream_begin_capture)(self.inner.stream, CAPTURE_THREAD_LOCAL)
        };
        self.inner.check("cuStreamBeginCapture", code)?;
        let capture = Capture { context: self };
        let recorded = record(self);
        let template = capture.end();
        // An error of `record` says more than that the recording is invalid.
        recorded?;
        Ok(template?.instantiate(self)?)
    }

    /// Starts a graph on the stream.
    ///
    /// # Safety
    /// As for each launch that was recorded; see [`launch`](Self::launch).
    pub unsafe fn launch_graph(&self, graph: &Graph) -> Result<(), DriverError> {
        self.inner.make_current()?;
        // SAFETY: both handles are alive; the caller answers for what the kernels do.
        let code = unsafe { (self.inner.api().graph_launch)(graph.executable, self.inner.stream) };
        self.inner.check("cuGraphLaunch", code)
    }
}

impl Graph {
    /// How many launches, copies and fills it has.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.context.make_current();
        // SAFETY: it was made once and is destroyed once. The driver defers that while it runs.
        unsafe { (self.context.api().graph_executable_destroy)(self.executable) };
    }
}

/// A recording under way. Dropping it ends it, also if `record` panics.
struct Capture<'a> {
    context: &'a Context,
}

impl<'a> Capture<'a> {
    fn end(self) -> Result<Template, DriverError> {
        let context = self.context;
        std::mem::forget(self);
        Self::end_on(context)
    }

    fn end_on(context: &Context) -> Result<Template, DriverError> {
        let inner = &context.inner;
        inner.make_current()?;
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is being captured; the function writes a handle or null.
        let code = unsafe { (inner.api().stream_end_capture)(inner.stream, &mut graph) };
        let template = Template {
            context: Arc::clone(inner),
            graph,
        };
        inner.check("cuStreamEndCapture", code)?;
        Ok(template)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let _ = Self::end_on(self.context);
    }
}

/// A recording that has ended.
struct Template {
    context: Arc<Inner>,
    graph: Handle,
}

impl Template {
    fn instantiate(&self, context: &Context) -> Result<Graph, DriverError> {
        let inner = &context.inner;
        let api = inner.api();
        let mut nodes = 0;
        // SAFETY: without a place for them, the function only counts the nodes.
        let code = unsafe { (api.graph_nodes)(self.graph, ptr::null_mut(), &mut nodes) };
        inner.check("cuGraphGetNodes", code)?;
        let mut executable = ptr::null_mut();
        // SAFETY: the function writes a handle, which `Graph` destroys.
        let code = unsafe { (api.graph_instantiate)(&mut executable, self.graph, 0) };
        inner.check("cuGraphInstantiate", code)?;
        let graph = Graph {
            context: Arc::clone(inner),
            executable,
            nodes,
        };
        // So that the first launch is as fast as the others.
        // SAFETY: both handles are alive.
        let code = unsafe { (api.graph_upload)(executable, inner.stream) };
        inner.check("cuGraphUpload", code)?;
        Ok(graph)
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        if !self.graph.is_null() {
            // SAFETY: it was made once and is destroyed once.
            unsafe { (self.context.api().graph_destroy)(self.graph) };
        }
    }
}

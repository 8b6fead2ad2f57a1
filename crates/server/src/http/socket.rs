//! A socket that reports to the connection's watch and clock.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::watch::{HalfClose, Watch};
use crate::metrics::SocketClock;

/// How long to read after a request was refused. Closing at once would reset the connection, and the
/// client might not see the response.
const LINGER: Duration = Duration::from_secs(2);

/// Clients ignore interim responses; a client that has left rejects them.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// How often to look whether the client of a half-closed connection has left.
const HALF_CLOSED_LOOK: Duration = Duration::from_millis(50);

/// How often hyper may look at the end of a half-closed connection before it sees it. Between two
/// looks it polls the request's handler, which needs two: one to begin, one to read the body.
const UNCLEAR_LOOKS: u8 = 4;

/// Below TLS, so that it sees the wire.
pub struct Socket {
    stream: TcpStream,
    watch: Arc<Watch>,
    clock: Arc<SocketClock>,
    linger: Option<Pin<Box<Sleep>>>,
    /// Whether this socket may write responses of its own: not below TLS.
    is_plain: bool,
    /// Until the next look at a half-closed connection.
    half_closed: Option<Pin<Box<Sleep>>>,
    /// Looks at the end of the connection that did not tell whether a request is under way.
    unclear_looks: u8,
}

impl Socket {
    pub fn new(stream: TcpStream, watch: Arc<Watch>, clock: Arc<SocketClock>) -> Self {
        Self {
            stream,
            watch,
            clock,
            linger: None,
            is_plain: true,
            half_closed: None,
            unclear_looks: 0,
        }
    }

    /// A socket below TLS.
    pub fn below_tls(self) -> Self {
        Self {
            is_plain: false,
            ..self
        }
    }

    /// Hides the end of a half-closed connection from hyper while a request is under way. Fails once
    /// the client has rejected data: then it has closed both sides.
    fn poll_half_closed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.watch.half_close() {
            HalfClose::End => return Poll::Ready(Ok(())),
            HalfClose::Unclear if self.unclear_looks == UNCLEAR_LOOKS => {
                return Poll::Ready(Ok(()));
            }
            HalfClose::Unclear => {
                self.unclear_looks += 1;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            HalfClose::Wait => {}
            HalfClose::Probe => {
                let written = Pin::new(&mut self.stream).poll_write(context, INTERIM);
                if !matches!(written, Poll::Ready(Ok(length)) if length == INTERIM.len()) {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                }
            }
        }
        self.unclear_looks = 0;
        loop {
            if let Some(error) = self.stream.take_error()? {
                return Poll::Ready(Err(error));
            }
            let look = self
                .half_closed
                .get_or_insert_with(|| Box::pin(sleep(HALF_CLOSED_LOOK)));
            ready!(look.as_mut().poll(context));
            self.half_closed = None;
        }
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending => self.watch.stalled(),
            Poll::Ready(_) => self.watch.wrote(),
        }
        written
    }

    /// Returns when the client has closed its side or time is up.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        let mut scratch = [0; 4096];
        loop {
            if linger.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut scratch);
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.watch.read();
            return read;
        }
        let is_end = matches!(read, Poll::Ready(Ok(()))) && buffer.remaining() > 0;
        if is_end && self.is_plain {
            return self.poll_half_closed(context);
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Both hyper and TLS flush after writing everything.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        self.clock.written();
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        if self.watch.is_unread() {
            ready!(self.poll_linger(context));
        }
        Poll::Ready(Ok(()))
    }
}

//! The terminal while `cairn top` has it, and the keys that are pressed there.
//!
//! What holds here: the terminal is as it was before when the [`Screen`] is dropped, and before the words of
//! a panic are written.

use super::draw::{Chosen, draw};
use super::view::View;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::text::Line;
use std::io;
use std::time::Duration;
use tokio::sync::mpsc;

/// How often the thread that waits for keys looks whether somebody still wants them.
const POLL: Duration = Duration::from_millis(100);
/// Keys that were pressed and not handled yet; more wait in the terminal.
const KEYS: usize = 16;

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    End,
    Up,
    Down,
    Help,
    /// The terminal has another size.
    Resized,
}

/// The terminal in raw mode, with a screen of its own.
pub(super) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Takes the terminal of this process.
    ///
    /// # Errors
    /// The system's; the terminal is then as it was.
    pub(super) fn open() -> io::Result<Screen> {
        let opened = ratatui::try_init();
        if opened.is_err() {
            let _ = ratatui::try_restore();
        }
        opened.map(|terminal| Screen { terminal })
    }

    /// Draws a frame, or that there is none yet.
    ///
    /// # Errors
    /// The system's, as when the terminal is gone.
    pub(super) fn show(&mut self, view: Option<&View>, chosen: Chosen) -> io::Result<()> {
        let drawn = self.terminal.draw(|frame| match view {
            Some(view) => draw(view, chosen, frame.area(), frame.buffer_mut()),
            None => frame.render_widget(Line::raw("asking the cluster…"), frame.area()),
        });
        drawn.map(|_| ())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// The keys that are pressed from now on. The thread behind them ends with the channel. When the terminal is gone
/// and no SIGHUP says so, crossterm reads its end again and again and never returns: the thread is busy until the
/// next frame, which cannot be written, ends the program.
pub(super) fn keys() -> mpsc::Receiver<Key> {
    let (sender, receiver) = mpsc::channel(KEYS);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let read = match event::poll(POLL) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let Ok(event) = read else { return };
            if let Some(key) = key(&event)
                && sender.blocking_send(key).is_err()
            {
                return;
            }
        }
    });
    receiver
}

/// What an event means; `None`: nothing.
fn key(event: &Event) -> Option<Key> {
    let pressed = match event {
        Event::Resize(..) => return Some(Key::Resized),
        Event::Key(pressed) if pressed.kind == KeyEventKind::Press => pressed,
        _ => return None,
    };
    // In raw mode the terminal makes no signal of it.
    let control = pressed.modifiers.contains(KeyModifiers::CONTROL);
    match pressed.code {
        KeyCode::Char('c') if control => Some(Key::End),
        _ if control => None,
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::End),
        KeyCode::Up | KeyCode::Char('k') => Some(Key::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(Key::Down),
        KeyCode::Char('?' | 'h') => Some(Key::Help),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::crossterm::event::KeyEvent;

    #[test]
    fn keys_have_their_meaning_and_control_c_ends() {
        let of = |code, modifiers| key(&Event::Key(KeyEvent::new(code, modifiers)));
        let plain = |code| of(code, KeyModifiers::NONE);
        assert_eq!(plain(KeyCode::Char('q')), Some(Key::End));
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::End));
        assert_eq!(plain(KeyCode::Char('c')), None);
        assert_eq!((plain(KeyCode::Up), plain(KeyCode::Down)), (Some(Key::Up), Some(Key::Down)));
        assert_eq!(of(KeyCode::Char('?'), KeyModifiers::SHIFT), Some(Key::Help));
        assert_eq!(key(&Event::Resize(20, 5)), Some(Key::Resized));
        assert_eq!(key(&Event::FocusLost), None);
    }
}

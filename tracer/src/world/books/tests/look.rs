//! A live look on top of a recording.
//!
//! Always true: what the recording knew is known as long as it runs, and is not complete afterwards.

use super::*;

#[test]
fn a_look_that_goes_by_a_running_recording_knows_its_books_and_one_that_comes_later_says_what_it_lacks() {
    let look = |story: &mut Story| {
        let What::Header(header) = story.events[0].what.clone() else { panic!("the first event is the header") };
        story.push(What::Header(Box::new(crate::event::Header { watching_since: None, ..*header })));
    };
    let mut cuda = cuda();
    look(&mut cuda.story);
    let world = checked(&cuda.story);
    assert_eq!((world.books().memories().count(), world.books().gap_of_client(CLIENT)), (1, None));
    for ended in [true, false] {
        let mut cuda = self::cuda();
        if ended {
            cuda.story.push(What::Stop { reason: "signal 2".into() });
        } else {
            cuda.story.wait(600);
        }
        look(&mut cuda.story);
        let (at, cause) = (cuda.story.now, "recording_ended");
        assert_eq!(checked(&cuda.story).books().gap_of_client(CLIENT), Some(Gap::Lost { at, cause }));
    }
}

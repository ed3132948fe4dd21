//! Goes on with the answers that an ended process has left.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chats::Draft;
use cluster::on_thread;

use super::ask::start;
use super::writing::{End, Place};
use crate::app::App;
use crate::conversations::{Progress, Space, until};

/// How often it is looked whether a model is served again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Finds the drafts, and has a task go on with each. On return each is in progress.
pub(crate) async fn resume(app: &Arc<App>) {
    let spaces = Arc::clone(&app.spaces);
    let drafts = move || {
        let spaces = spaces.all();
        let of = |space: &Space| {
            let drafts = space.folder.drafts().into_iter();
            let space = space.clone();
            drafts.map(move |(id, draft)| (space.clone(), id, draft)).collect::<Vec<_>>()
        };
        let drafts: Vec<_> = spaces.iter().flat_map(of).collect();
        (spaces, drafts)
    };
    let Ok((spaces, drafts)) = on_thread(drafts).await else { return };
    for (space, id, draft) in drafts {
        let progress = Progress::new(&draft);
        let waiting = format!("this answer goes on as soon as {} is served again", draft.model);
        progress.text().waiting = Some(waiting);
        let Ok(running) = app.answering.begin(space.whose, &id, progress) else { continue };
        let progress = Arc::clone(&running.progress);
        running.keep();
        tokio::spawn(go_on(Arc::clone(app), space, id, draft, progress));
    }
    // The first list reads all files: that takes nobody's time.
    let list = move || spaces.iter().for_each(|space| drop(space.folder.list()));
    drop(on_thread(list));
}

async fn go_on(app: Arc<App>, space: Space, id: String, draft: Draft, progress: Arc<Progress>) {
    let opened = {
        let (id, draft) = (id.clone(), draft.clone());
        space.run(move |folder| {
            let talk = folder.read(&id).and_then(|talk| talk.has(draft.after).map(|()| talk));
            talk.and_then(|talk| Ok((talk, folder.draft(&id, &draft)?)))
        })
    };
    let (talk, file) = match opened.await {
        Ok(opened) => opened,
        Err(error) => {
            tracing::warn!(id, error = error.message, "a draft cannot go on");
            return app.answering.end(space.whose, &id);
        }
    };
    let whose = space.whose;
    let place =
        Place { app: Arc::clone(&app), space, id, progress, draft: Arc::new(Mutex::new(file)) };
    let ended = tokio::select! {
        () = served(&app, &draft.model) => None,
        end = stopped(&place) => Some(end),
    };
    if let Some(end) = ended {
        return place.finish(end).await;
    }
    match start(&app, whose, &talk, &draft).await {
        Ok(answer) => place.write(answer).await,
        Err(error) => place.finish(End::Cut(error.message)).await,
    }
}

/// Waits until somebody stops the answer, or the node.
async fn stopped(place: &Place) -> End {
    let mut stopped = place.progress.stopped();
    let mut leaving = place.app.stopping.subscribe();
    tokio::select! {
        () = until(&mut stopped) => End::Cut("stopped".to_owned()),
        () = until(&mut leaving) => End::Left,
    }
}

/// Waits until a model, or that of a preset, is served.
async fn served(app: &App, name: &str) {
    loop {
        let model = app.preset(name).map_or(name.to_owned(), |preset| preset.model);
        if app.is_served(&model) || app.is_served(name) {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

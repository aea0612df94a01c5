// Browsers refuse workers to pages that are opened as files. There the search (iframe-worker's part of mkdocs-material) runs
// in a hidden frame instead, which takes the same messages. On a server this does nothing.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.document.open();
      inside.document.write("<!doctype html><body></body>");
      inside.document.close();
      const load = (address) =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script");
          [script.src, script.onload, script.onerror] = [address, done, failed];
          inside.document.body.append(script);
        });
      inside.importScripts = (...all) => all.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside = inside;
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
}

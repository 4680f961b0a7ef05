// Pages opened from disk may not start workers, so there the search runs in a hidden frame. The name
// of this file tells the offline plugin that nothing has to be fetched from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.scope = frame.contentWindow;
      this.loaded = new Promise((resolve) => {
        const script = this.scope.document.createElement("script");
        script.onload = resolve;
        script.src = url;
        // the script talks to the page as a worker would
        this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        this.scope.document.body.appendChild(script);
      });
    }
    postMessage(data) {
      this.loaded.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}

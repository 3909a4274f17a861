// A page that is opened from the disk may not start a worker: the search then runs in a hidden frame instead.
// What is sent is copied, as it is for a worker, and arrives later.
if (location.protocol === "file:") {
  const message = (data) => new MessageEvent("message", { data: structuredClone(data) });
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.scope = this.frame.contentWindow;
      this.scope.postMessage = (data) => {
        const event = message(data);
        setTimeout(() => {
          this.dispatchEvent(event);
          this.onmessage?.(event);
        });
      };
      const script = this.scope.document.createElement("script");
      this.loaded = new Promise((resolve) => script.addEventListener("load", resolve));
      script.src = url;
      this.scope.document.body.append(script);
    }
    postMessage(data) {
      const event = message(data);
      this.loaded.then(() => this.scope.dispatchEvent(event));
    }
    terminate() {
      this.frame.remove();
    }
  };
}

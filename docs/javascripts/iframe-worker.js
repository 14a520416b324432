// Search in a site that is opened from a folder. Browsers start no workers on file: addresses, so that the search's
// worker runs in a hidden frame. Its name tells Material's offline plugin that it need not load a shim from elsewhere.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.onmessage = null;
      this.unsent = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.onmessage?.(event);
        this.dispatchEvent(event);
      };
      this.inside.importScripts = (...addresses) => Promise.all(addresses.map((one) => this.load(one)));
      this.load(address).then(() => {
        const { unsent } = this;
        this.unsent = null;
        unsent.forEach((data) => this.postMessage(data));
      });
    }

    load(address) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        script.onload = resolve;
        script.onerror = reject;
        script.src = new URL(address, document.baseURI);
        this.inside.document.head.append(script);
      });
    }

    postMessage(data) {
      if (this.unsent) this.unsent.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}

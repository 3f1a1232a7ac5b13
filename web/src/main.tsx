import { render } from "preact";

render(<h1>treering</h1>, document.getElementById("app")!);

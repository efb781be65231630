"""Runs scripts on a page in Chromium, if installed."""

import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest

_CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_HERE = pathlib.Path(__file__).parent
_SCRIPT = """
<script>
const run = () => {{ {script} }};
addEventListener("load", () => {{
  const result = JSON.stringify(run());
  document.body.innerHTML = `<pre id="result">${{result}}</pre>`;
}});
</script>
"""

needed = pytest.mark.skipif(
  not _CHROMIUM, reason="no Chromium: apt-get install chromium"
)


def run_script(page: str, script: str, folder: pathlib.Path) -> Any:
  """Loads a page in the light theme, runs a script and returns the script's result."""
  path = folder / "page.html"
  body = (_HERE / script).read_text()
  path.write_text(page.replace("</body>", _SCRIPT.format(script=body) + "</body>"))
  flags = "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"
  data = f"--user-data-dir={folder}"
  done = subprocess.run(
    [_CHROMIUM, *flags, data, "--dump-dom", f"file://{path}#light"],
    capture_output=True,
    text=True,
    timeout=60,
    check=True,
  )
  return json.loads(re.search(r'<pre id="result">(.*?)</pre>', done.stdout)[1])

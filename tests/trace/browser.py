"""A page in a browser, where there is one."""

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
  const told = JSON.stringify(run());
  document.body.innerHTML = `<pre id="told">${{told}}</pre>`;
}});
</script>
"""

needed = pytest.mark.skipif(
  not _CHROMIUM, reason="no Chromium: apt-get install chromium"
)


def told(page: str, script: str, folder: pathlib.Path) -> Any:
  """Returns what a file's script returns on a loaded page, which is light."""
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
  return json.loads(re.search(r'<pre id="told">(.*?)</pre>', done.stdout)[1])

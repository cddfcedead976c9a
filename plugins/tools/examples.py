"""A plugin tool, for `prompt.tool`: `<hex>255</hex>` is followed by `=0xff`."""

from lib.prompts.tools import Tool


def to_hex(text: str) -> str:
    """Write a whole number in hexadecimal; a ValueError is a wrong call, which gives `=?`."""
    return f"={int(text):#x}"


hexadecimal = Tool(open="<hex>", close="</hex>", run=to_hex, max_calls=8, timeout_s=0.5)

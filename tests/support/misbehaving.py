"""A process that speaks the protocol, has softmax, and misbehaves once: python misbehaving.py FAULT FILE [TEXT].

It misbehaves at the first call after which FILE does not exist, and makes the file; at every call if FILE is `always`.
Nothing but the standard library is imported, so that it starts at once.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def softmax(flat, shape):
    width = shape[-1]
    if not width:
        raise ValueError("scores: the last axis is empty")
    output = []
    for start in range(0, len(flat), width):
        row = flat[start : start + width]
        powers = [math.exp(x - max(row)) for x in row]
        output += [power / sum(powers) for power in powers]
    return output


def write(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def reply(id_, result):
    return json.dumps({"jsonrpc": "2.0", "id": id_, "result": result}) + "\n"


def refuse(id_, code, message):
    return json.dumps({"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}}) + "\n"


def says(good):
    """TEXT, in which ID stands for the id of the request; or the bytes of a file, @FILE."""
    if sys.argv[3].startswith("@"):
        sys.stdout.buffer.write(Path(sys.argv[3][1:]).read_bytes())
        sys.stdout.flush()
    else:
        write(sys.argv[3].replace("ID", str(json.loads(good)["id"])) + "\n")


def exit_3(good):
    sys.stderr.write("reading the weights\nwho took the weights?\n")
    sys.exit(3)


def segfault(good):
    os.kill(os.getpid(), signal.SIGSEGV)


def garbage(good):
    write("computing softmax ...\n")


def hang(good):
    time.sleep(600)


def half_a_message_and_hang(good):
    write(good[: len(good) // 2])
    time.sleep(600)


def drip(good):
    while True:
        write(" ")
        time.sleep(0.01)


def carriage_return(good):
    write(good.replace("\n", "\r"))
    time.sleep(600)


def closed_input_and_hang(good):
    os.close(0)
    time.sleep(600)


def half_a_message_and_end(good):
    write(good[: len(good) // 2])
    sys.exit(0)


def wrong_id(good):
    write(reply(10_000, json.loads(good)["result"]))


def huge_reply(good):
    chunk = "1" * (1 << 20)
    while True:
        write(chunk)


def closed_output(good):
    os.close(1)
    time.sleep(600)


def closed_input(good):
    os.close(0)
    write(good)
    time.sleep(600)


def two_replies(good):
    write(good + good)


def late(good):
    time.sleep(1.0)
    write(good)


def no_reply_to_anything(good):
    write("[]\n")


def both(good):
    write(json.dumps({**json.loads(good), "error": {"code": 1, "message": "?"}}) + "\n")


def bad_array(good):
    message = json.loads(good)
    message["result"]["output"]["data"].pop()
    write(json.dumps(message) + "\n")


def nan_literal(good):
    message = json.loads(good)
    message["result"]["output"]["data"][0] = float("nan")
    write(json.dumps(message) + "\n")


def leaves_a_child(good):
    """The one that it leaves behind holds all three pipes open, and its number stands on standard error."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    sys.stderr.write(f"left {other.pid}\n")
    sys.exit(0)


def leaves_a_daemon(good):
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    sys.stderr.write(f"left {other.pid}\n")
    sys.exit(0)


def talkative(good):
    sys.stderr.write("a line of a long story\n" * 100_000)
    write(good)


def colours(good):
    sys.stderr.write("\x1b[31mred\x1b[0m\n")
    sys.exit(1)


def main():
    fault, file = globals()[sys.argv[1]], Path(sys.argv[2])
    for line in sys.stdin:
        request = json.loads(line)
        id_, method = request["id"], request["method"]
        if method == "shutdown":
            write(reply(id_, None))
            return
        if method == "initialize":
            write(reply(id_, {"protocol": 1, "name": "misbehaving", "components": ["softmax"]}))
            continue
        scores = request["params"]["scores"]
        try:
            good = reply(id_, {"output": {**scores, "data": softmax(scores["data"], scores["shape"])}})
        except ValueError as error:
            good = refuse(id_, -32602, str(error))
        if file.exists():
            write(good)
        else:
            if sys.argv[2] != "always":
                file.touch()
            fault(good)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Make the log of this example: a real nginx before two real services, on loopback, for 150 s.

    ./produce.py FOLDER        (needs Debian's nginx-light; stops by itself)

Nothing in the log is written by hand. What is staged is the setting: two copies of a small order
service share nothing but the proxy, each with a pool of four database connections; a few clients
ask for orders, a scanner asks for what is not there, and after 45 seconds a monthly export starts
that takes longer than the proxy waits. What follows from that is what nginx logged.
"""

from __future__ import annotations

import http.client
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

PROXY_PORT, NODE_PORTS = 18080, (19001, 19002)
DURATION_S, EXPORT_AT_S = 150.0, 45.0
POOL_SIZE, EXPORT_PAGES, PAGE_PAUSE_S = 4, 80, 0.25

NGINX = """
daemon off; pid nginx.pid; error_log error.log warn; worker_processes 1;
events {{ worker_connections 512; }}
http {{
  log_format timed '$remote_addr [$time_iso8601] "$request" $status $body_bytes_sent '
                   '"$http_user_agent" $request_time "$upstream_addr" "$upstream_response_time"';
  access_log access.log timed;
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3;
  uwsgi_temp_path t4; scgi_temp_path t5;
  upstream orders {{
    server 127.0.0.1:{0} max_fails=3 fail_timeout=5s;
    server 127.0.0.1:{1} max_fails=3 fail_timeout=5s;
  }}
  server {{
    listen 127.0.0.1:{2};
    location /api/ {{
      proxy_pass http://orders;
      proxy_connect_timeout 1s; proxy_read_timeout 3s;
      proxy_next_upstream error timeout;
    }}
    location / {{ return 404; }}
  }}
}}
"""


class Orders(BaseHTTPRequestHandler):
    """The order service. A request that needs the database waits for one of four connections."""

    database: Path
    pool: threading.BoundedSemaphore

    def do_GET(self) -> None:
        with self.pool, sqlite3.connect(self.database) as db:
            body = self.export(db) if self.path.startswith("/api/export") else self.order(db)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def order(self, db: sqlite3.Connection) -> bytes:
        number = int(urlsplit(self.path).path.rpartition("/")[2])
        row = db.execute("SELECT * FROM orders WHERE id = ?", (number,)).fetchone()
        db.execute("SELECT count(*) FROM orders WHERE customer LIKE ?", (f"%{number % 97}%",)).fetchone()
        return repr(row).encode()

    def export(self, db: sqlite3.Connection) -> bytes:
        """Page by page, with a pause to spare the database; keeps its connection all the while."""
        pages = []
        for page in range(EXPORT_PAGES):
            query = "SELECT * FROM orders ORDER BY id LIMIT 250 OFFSET ?"
            pages.append(repr(db.execute(query, (page * 250,)).fetchall()))
            time.sleep(PAGE_PAUSE_S)
        return "\n".join(pages).encode()

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the proxy has given up on this request long ago

    def log_message(self, *_: object) -> None:
        pass


def fill(database: Path) -> None:
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)")
        rows = ((n, f"customer-{n * 7919 % 5003}", n * 31 % 9973) for n in range(20_000))
        db.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)


def serve(port: int, database: Path) -> None:
    node = type("Node", (Orders,), {
        "database": database, "pool": threading.BoundedSemaphore(POOL_SIZE)
    })
    server = ThreadingHTTPServer(("127.0.0.1", port), node)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()


def get(source: str, path: str, agent: str, timeout_s: float) -> int:
    """One GET from the loopback address `source`; 0 if the client gave up."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", PROXY_PORT, timeout=timeout_s, source_address=(source, 0)
    )
    try:
        connection.request("GET", path, headers={"User-Agent": agent})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except OSError:
        return 0
    finally:
        connection.close()


def shop(source: str, agent: str, pause_s: float, until: float, seed: int) -> None:
    """A client that asks for orders one after the other, and waits four seconds for each."""
    chance = random.Random(seed)
    while time.monotonic() < until:
        get(source, f"/api/orders/{chance.randrange(20_000)}", agent, 4.0)
        time.sleep(chance.expovariate(1 / pause_s))


def scan(until: float) -> None:
    chance = random.Random(7)
    paths = ("/.env", "/wp-login.php", "/admin/", "/.git/config", "/phpmyadmin/", "/backup.zip")
    while time.monotonic() < until:
        get("127.0.3.66", chance.choice(paths), "Mozilla/5.0 (compatible; probe/0.9)", 4.0)
        time.sleep(chance.expovariate(2.2))


def export(month: str, start: float) -> None:
    """The monthly export: three months at once, each tried up to four times, 8 s apart."""
    time.sleep(max(0.0, start - time.monotonic()))
    for _ in range(4):
        if get("127.0.2.20", f"/api/export?month={month}", "ledger-export/1.4", 30.0) == 200:
            return
        time.sleep(8.0)


def load(until: float, export_at: float) -> None:
    shops = [(f"127.0.1.{11 + n}", ("shop-web/5.2", "shop-app/3.8")[n % 2]) for n in range(8)]
    jobs = [partial(shop, *who, 0.9, until, seed) for seed, who in enumerate(shops)]
    jobs += [partial(scan, until)]
    jobs += [partial(export, month, export_at) for month in ("2026-08", "2026-09", "2026-10")]
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    fill(folder / "orders.db")
    for port in NODE_PORTS:
        serve(port, folder / "orders.db")
    (folder / "nginx.conf").write_text(NGINX.format(*NODE_PORTS, PROXY_PORT))
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    proxy = subprocess.Popen([nginx, "-p", f"{folder}/", "-e", "error.log", "-c", "nginx.conf"])
    try:
        time.sleep(1.0)
        begin = time.monotonic()
        load(begin + DURATION_S, begin + EXPORT_AT_S)
    finally:
        proxy.terminate()
        proxy.wait(10)


if __name__ == "__main__":
    main()

-- A new treering store on SQLite, schema 0001. Generated from src/treering/engines/sql/tables.py;
-- do not edit: change the tables, write a migration, and run: python scripts/generate.py

CREATE TABLE meta (
  "key" TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY ("key")
);

CREATE TABLE scope (
  space INTEGER NOT NULL,
  no INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  CONSTRAINT scope_space_name_key UNIQUE (space, name)
);

CREATE TABLE run (
  space INTEGER NOT NULL,
  no INTEGER NOT NULL,
  name TEXT NOT NULL,
  PRIMARY KEY (space, no)
) WITHOUT ROWID;
CREATE INDEX run_name ON run (space, name);

CREATE TABLE commits (
  space INTEGER NOT NULL,
  no INTEGER NOT NULL,
  batch TEXT NOT NULL,
  first_seq INTEGER NOT NULL,
  last_seq INTEGER NOT NULL,
  committed_at_us INTEGER NOT NULL,
  receipt BLOB,
  links TEXT,
  leaves BLOB NOT NULL,
  digest BLOB NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY (no),
  CONSTRAINT commits_space_batch_key UNIQUE (space, batch)
);
CREATE INDEX commits_seq ON commits (space, last_seq);

CREATE TABLE body (
  space INTEGER NOT NULL,
  "key" INTEGER NOT NULL,
  scope INTEGER NOT NULL,
  frame BLOB NOT NULL,
  salt BLOB NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY ("key")
);
CREATE INDEX body_scope ON body (space, scope);

CREATE TABLE event (
  space INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  day INTEGER NOT NULL,
  id TEXT NOT NULL,
  commit_no INTEGER NOT NULL,
  kind TEXT NOT NULL,
  ts_us INTEGER NOT NULL,
  scope INTEGER NOT NULL,
  run INTEGER,
  span TEXT,
  parent TEXT,
  thread TEXT,
  agent TEXT,
  name TEXT,
  model TEXT,
  role TEXT,
  status TEXT,
  input_tokens INTEGER,
  cache_read_tokens INTEGER,
  cache_write_tokens INTEGER,
  cache_write_1h_tokens INTEGER,
  output_tokens INTEGER,
  reasoning_tokens INTEGER,
  other_tokens INTEGER,
  cost_nanos INTEGER,
  currency TEXT,
  duration_us INTEGER,
  data BLOB,
  body TEXT,
  links TEXT,
  salt BLOB NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY (space, seq, day),
  CONSTRAINT event_space_day_id_key UNIQUE (space, day, id)
) WITHOUT ROWID;
CREATE INDEX event_run ON event (space, run, ts_us, seq) WHERE run IS NOT NULL;
CREATE INDEX event_scope ON event (space, scope, kind, seq);
CREATE INDEX event_thread ON event (space, thread, kind, seq) WHERE thread > '';

CREATE TABLE object (
  space INTEGER NOT NULL,
  name BLOB NOT NULL,
  kind SMALLINT NOT NULL,
  size INTEGER NOT NULL,
  stored_at_us INTEGER NOT NULL,
  staged_until_us INTEGER NOT NULL,
  frame BLOB,
  pack INTEGER,
  "offset" INTEGER,
  length INTEGER,
  inner_offset INTEGER,
  PRIMARY KEY (space, name)
);
CREATE INDEX object_pack ON object (space, pack) WHERE pack IS NOT NULL;

CREATE TABLE pack (
  space INTEGER NOT NULL,
  no INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  size INTEGER NOT NULL,
  created_at_us INTEGER NOT NULL,
  CONSTRAINT pack_space_name_key UNIQUE (space, name)
);

CREATE TABLE list (
  space INTEGER NOT NULL,
  no INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL,
  scope INTEGER NOT NULL,
  parent INTEGER,
  start INTEGER NOT NULL,
  length INTEGER NOT NULL,
  depth INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  salt BLOB NOT NULL,
  checksum INTEGER NOT NULL,
  CONSTRAINT list_space_id_key UNIQUE (space, id)
);
CREATE INDEX list_parent ON list (space, parent) WHERE parent IS NOT NULL;
CREATE INDEX list_scope ON list (space, scope);

CREATE TABLE item (
  space INTEGER NOT NULL,
  "key" INTEGER NOT NULL,
  kind SMALLINT,
  frame BLOB,
  address TEXT,
  checksum INTEGER NOT NULL,
  PRIMARY KEY ("key")
);

CREATE TABLE ref (
  space INTEGER NOT NULL,
  name TEXT NOT NULL,
  scope INTEGER NOT NULL,
  version INTEGER NOT NULL,
  value BLOB,
  links TEXT,
  seq INTEGER NOT NULL,
  changed_at_us INTEGER NOT NULL,
  listed_in TEXT,
  listed_us INTEGER,
  namespace TEXT,
  agent TEXT,
  status TEXT,
  thread TEXT,
  salt BLOB NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY (space, name)
) WITHOUT ROWID;
CREATE INDEX ref_listed ON ref (space, listed_in, listed_us, name) WHERE listed_in IS NOT NULL;
CREATE INDEX ref_listed_namespace ON ref (space, listed_in, namespace, listed_us, name) WHERE listed_in IS NOT NULL;
CREATE INDEX ref_listed_namespace_agent ON ref (space, listed_in, namespace, agent, listed_us, name) WHERE listed_in IS NOT NULL AND agent IS NOT NULL;
CREATE INDEX ref_listed_namespace_agent_status ON ref (space, listed_in, namespace, agent, status, listed_us, name) WHERE listed_in IS NOT NULL AND agent IS NOT NULL AND status IS NOT NULL;
CREATE INDEX ref_listed_namespace_status ON ref (space, listed_in, namespace, status, listed_us, name) WHERE listed_in IS NOT NULL AND status IS NOT NULL;
CREATE INDEX ref_listed_namespace_thread ON ref (space, listed_in, namespace, thread, listed_us, name) WHERE listed_in IS NOT NULL AND thread IS NOT NULL;
CREATE INDEX ref_listed_status ON ref (space, listed_in, status, listed_us, name) WHERE listed_in IS NOT NULL AND status IS NOT NULL;
CREATE INDEX ref_scope ON ref (space, scope);
CREATE INDEX ref_seq ON ref (space, seq) WHERE links IS NOT NULL;

CREATE TABLE lease (
  space INTEGER NOT NULL,
  name TEXT NOT NULL,
  holder TEXT,
  token INTEGER NOT NULL,
  expires_at_us INTEGER NOT NULL,
  PRIMARY KEY (space, name)
);

CREATE TABLE rollup (
  space INTEGER NOT NULL,
  grain TEXT NOT NULL,
  "key" TEXT NOT NULL,
  day INTEGER NOT NULL,
  agent TEXT NOT NULL,
  model TEXT NOT NULL,
  kind TEXT NOT NULL,
  currency TEXT NOT NULL,
  bucket SMALLINT NOT NULL,
  events INTEGER NOT NULL,
  errors INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  cache_read_tokens INTEGER NOT NULL,
  cache_write_tokens INTEGER NOT NULL,
  cache_write_1h_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  other_tokens INTEGER NOT NULL,
  cost_nanos INTEGER NOT NULL,
  duration_us INTEGER NOT NULL,
  unpriced_events INTEGER NOT NULL,
  unpriced_tokens INTEGER NOT NULL,
  PRIMARY KEY (space, grain, "key", day, agent, model, kind, currency, bucket)
) WITHOUT ROWID;

CREATE TABLE collection (
  space INTEGER NOT NULL,
  no INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  tokens TEXT NOT NULL,
  CONSTRAINT collection_space_name_key UNIQUE (space, name)
);

CREATE TABLE text (
  space INTEGER NOT NULL,
  no INTEGER NOT NULL,
  collection INTEGER NOT NULL,
  name TEXT NOT NULL,
  namespace TEXT NOT NULL,
  scope INTEGER NOT NULL,
  source TEXT NOT NULL,
  salt BLOB NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY (no),
  CONSTRAINT text_space_collection_name_key UNIQUE (space, collection, name)
);
CREATE INDEX text_scope ON text (space, scope);

CREATE TABLE space (
  no INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  seq INTEGER NOT NULL,
  committed_at_us INTEGER NOT NULL,
  created_at_us INTEGER NOT NULL,
  scopes_dropped INTEGER DEFAULT 0 NOT NULL,
  CONSTRAINT space_name_key UNIQUE (name)
);

CREATE TABLE fresh (
  slot INTEGER NOT NULL,
  no INTEGER NOT NULL,
  space INTEGER NOT NULL,
  rows BLOB NOT NULL,
  PRIMARY KEY (slot)
);

CREATE TABLE alembic_version (
  version_num VARCHAR(32) NOT NULL,
  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO alembic_version (version_num) VALUES ('0001');

INSERT INTO meta (key, value) VALUES ('format', '1');

ANALYZE meta;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('event', 'event', '1000000 200000 1');
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('event', 'sqlite_autoindex_event_2', '1000000 200000 5000 1');
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('event', 'event_run', '1000000 200000 100 2 1');
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('event', 'event_scope', '1000000 200000 200 100 1');
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('event', 'event_thread', '1000000 200000 200 100 1');
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('scope', 'sqlite_autoindex_scope_1', '1000000 200000 1');
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('commits', 'sqlite_autoindex_commits_1', '1000000 200000 1');
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('commits', 'commits_seq', '1000000 200000 1');
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('body', 'body_scope', '1000000 200000 10');

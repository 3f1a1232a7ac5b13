BEGIN TRANSACTION;
CREATE TABLE alembic_version (
  version_num VARCHAR(32) NOT NULL,
  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE body (
  space INTEGER NOT NULL,
  "key" INTEGER NOT NULL,
  scope INTEGER NOT NULL,
  frame BLOB NOT NULL,
  salt BLOB NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY ("key")
);
INSERT INTO "body" VALUES(1,65536,1,X'01000000256B1A2B00000001010000002F7B22636F6E74656E74223A225768657265206973206D7920726566756E643F222C22726F6C65223A2275736572227D',X'000102030405060708090A0B0C0D0E0F',1799400829);
CREATE TABLE collection (
  space INTEGER NOT NULL,
  no INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  tokens TEXT NOT NULL,
  CONSTRAINT collection_space_name_key UNIQUE (space, name)
);
INSERT INTO "collection" VALUES(1,1,'messages','words');
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
INSERT INTO "commits" VALUES(1,1,'batch-1',1,2,1728000000000005,NULL,NULL,X'96028090909090',X'0000000000000000000000000000000000000000000000000000000000000000',-7774960652742515639);
INSERT INTO "commits" VALUES(1,2,'batch-2',3,3,1728000000000009,NULL,NULL,X'96028090909090',X'0000000000000000000000000000000000000000000000000000000000000000',1264053969098829044);
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
INSERT INTO "event" VALUES(1,1,20000,'e1',1,'message',1728000000000001,1,-8944841499210040016,NULL,NULL,'support/alice',NULL,NULL,NULL,'user',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,X'0122726566756E64227D','0.0',NULL,X'000102030405060708090A0B0C0D0E0F',7470250969699751221);
INSERT INTO "event" VALUES(1,2,20000,'e2',1,'message',1728000000000002,7,-8944841499210040016,'s1',NULL,'support/alice','planner',NULL,'m-1','assistant','ok',412,0,0,0,96,12,0,1500000,'EUR',8230000,NULL,NULL,'s:batch-1:0.0',X'000102030405060708090A0B0C0D0E0F',-156655710563745668);
INSERT INTO "event" VALUES(1,3,20000,'e3',2,'note',1728000000000003,7,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'o:a312b27988e18b62e2d69a8b45f98dae47bc2a654ae3bc733c16fed8c41e3a21',X'000102030405060708090A0B0C0D0E0F',4694649934181055128);
CREATE TABLE fresh (
  slot INTEGER NOT NULL,
  no INTEGER NOT NULL,
  space INTEGER NOT NULL,
  rows BLOB NOT NULL,
  PRIMARY KEY (slot)
);
CREATE TABLE item (
  space INTEGER NOT NULL,
  "key" INTEGER NOT NULL,
  kind SMALLINT,
  frame BLOB,
  address TEXT,
  checksum INTEGER NOT NULL,
  PRIMARY KEY ("key")
);
INSERT INTO "item" VALUES(1,4294967296,NULL,NULL,'s:batch-1:0.0',895810371);
INSERT INTO "item" VALUES(1,4294967297,1,X'0100000071D891BA7B22636F6E74656E74223A224F6E206974732077617920E28094203320646179732E20F09F8CB2222C22726F6C65223A22617373697374616E74227D',NULL,952961101);
INSERT INTO "item" VALUES(1,8589934593,1,X'010000006676C1E322616E6F7468657220656E6422',NULL,4161669335);
CREATE TABLE lease (
  space INTEGER NOT NULL,
  name TEXT NOT NULL,
  holder TEXT,
  token INTEGER NOT NULL,
  expires_at_us INTEGER NOT NULL,
  PRIMARY KEY (space, name)
);
INSERT INTO "lease" VALUES(1,'sweep','host-1',4,1728000000000000);
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
INSERT INTO "list" VALUES(1,1,'list-1',1,NULL,0,2,0,2,X'000102030405060708090A0B0C0D0E0F',1996673989);
INSERT INTO "list" VALUES(1,2,'list-2',1,1,1,2,1,3,X'000102030405060708090A0B0C0D0E0F',1025871294);
CREATE TABLE meta (
  "key" TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('format','1');
INSERT INTO "meta" VALUES('created_by','treering 0.1.0');
INSERT INTO "meta" VALUES('store_id','golden');
INSERT INTO "meta" VALUES('dictionary','["{\"topic\":"]');
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
INSERT INTO "object" VALUES(1,X'A312B27988E18B62E2D69A8B45F98DAE47BC2A654AE3BC733C16FED8C41E3A21',2,8000,1728000000000009,1728000000000009,X'01010000EC21EC1328B52FFD60401EE50000A06120747265652072696E67206120796561722C20010052FEFAC904',NULL,NULL,NULL,NULL);
CREATE TABLE pack (
  space INTEGER NOT NULL,
  no INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  size INTEGER NOT NULL,
  created_at_us INTEGER NOT NULL,
  CONSTRAINT pack_space_name_key UNIQUE (space, name)
);
INSERT INTO "pack" VALUES(1,1,'4862f447f2c7f272fa2f4aaf89dadb3b1ac09105bd5864f8d1a0c9452bb0a226',64,1728000000000000);
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
INSERT INTO "ref" VALUES(1,'gone',1,5,NULL,NULL,3,1728000000000009,NULL,NULL,NULL,NULL,NULL,NULL,X'000102030405060708090A0B0C0D0E0F',1351143191);
INSERT INTO "ref" VALUES(1,'thread/support/alice',1,2,X'7B226C656E677468223A327D','l:list-1',2,1728000000000005,NULL,NULL,NULL,NULL,NULL,NULL,X'000102030405060708090A0B0C0D0E0F',3617010467);
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
INSERT INTO "rollup" VALUES(1,'run','g92KDFtpvTA',20000,'planner','m-1','message','EUR',0,1,0,412,0,0,0,96,12,0,1500000,8230000,0,0);
CREATE TABLE run (
  space INTEGER NOT NULL,
  no INTEGER NOT NULL,
  name TEXT NOT NULL,
  PRIMARY KEY (space, no)
) WITHOUT ROWID;
INSERT INTO "run" VALUES(1,-8944841499210040016,'r1');
CREATE TABLE scope (
  space INTEGER NOT NULL,
  no INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  CONSTRAINT scope_space_name_key UNIQUE (space, name)
);
INSERT INTO "scope" VALUES(1,1,'/thread/support%2Falice');
INSERT INTO "scope" VALUES(1,7,'/run/r1');
CREATE TABLE space (
  no INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  seq INTEGER NOT NULL,
  committed_at_us INTEGER NOT NULL,
  created_at_us INTEGER NOT NULL,
  scopes_dropped INTEGER DEFAULT 0 NOT NULL,
  CONSTRAINT space_name_key UNIQUE (name)
);
INSERT INTO "space" VALUES(1,'default',3,1728000000000009,1728000000000000,0);
ANALYZE "sqlite_master";
INSERT INTO "sqlite_stat1" VALUES('meta','sqlite_autoindex_meta_1','1 1');
INSERT INTO "sqlite_stat1" VALUES('event','event','1000000 200000 1');
INSERT INTO "sqlite_stat1" VALUES('event','sqlite_autoindex_event_2','1000000 200000 5000 1');
INSERT INTO "sqlite_stat1" VALUES('event','event_run','1000000 200000 100 2 1');
INSERT INTO "sqlite_stat1" VALUES('event','event_scope','1000000 200000 200 100 1');
INSERT INTO "sqlite_stat1" VALUES('event','event_thread','1000000 200000 200 100 1');
INSERT INTO "sqlite_stat1" VALUES('scope','sqlite_autoindex_scope_1','1000000 200000 1');
INSERT INTO "sqlite_stat1" VALUES('commits','sqlite_autoindex_commits_1','1000000 200000 1');
INSERT INTO "sqlite_stat1" VALUES('commits','commits_seq','1000000 200000 1');
INSERT INTO "sqlite_stat1" VALUES('body','body_scope','1000000 200000 10');
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
INSERT INTO "text" VALUES(1,1,1,'e1','alice',1,'s:batch-1:0.0',X'000102030405060708090A0B0C0D0E0F',2904922865);
CREATE INDEX run_name ON run (space, name);
CREATE INDEX commits_seq ON commits (space, last_seq);
CREATE INDEX body_scope ON body (space, scope);
CREATE INDEX event_run ON event (space, run, ts_us, seq) WHERE run IS NOT NULL;
CREATE INDEX event_scope ON event (space, scope, kind, seq);
CREATE INDEX event_thread ON event (space, thread, kind, seq) WHERE thread > '';
CREATE INDEX object_pack ON object (space, pack) WHERE pack IS NOT NULL;
CREATE INDEX list_parent ON list (space, parent) WHERE parent IS NOT NULL;
CREATE INDEX list_scope ON list (space, scope);
CREATE INDEX ref_listed ON ref (space, listed_in, listed_us, name) WHERE listed_in IS NOT NULL;
CREATE INDEX ref_listed_namespace ON ref (space, listed_in, namespace, listed_us, name) WHERE listed_in IS NOT NULL;
CREATE INDEX ref_listed_namespace_agent ON ref (space, listed_in, namespace, agent, listed_us, name) WHERE listed_in IS NOT NULL AND agent IS NOT NULL;
CREATE INDEX ref_listed_namespace_agent_status ON ref (space, listed_in, namespace, agent, status, listed_us, name) WHERE listed_in IS NOT NULL AND agent IS NOT NULL AND status IS NOT NULL;
CREATE INDEX ref_listed_namespace_status ON ref (space, listed_in, namespace, status, listed_us, name) WHERE listed_in IS NOT NULL AND status IS NOT NULL;
CREATE INDEX ref_listed_namespace_thread ON ref (space, listed_in, namespace, thread, listed_us, name) WHERE listed_in IS NOT NULL AND thread IS NOT NULL;
CREATE INDEX ref_listed_status ON ref (space, listed_in, status, listed_us, name) WHERE listed_in IS NOT NULL AND status IS NOT NULL;
CREATE INDEX ref_scope ON ref (space, scope);
CREATE INDEX ref_seq ON ref (space, seq) WHERE links IS NOT NULL;
CREATE INDEX text_scope ON text (space, scope);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('space',1);
INSERT INTO "sqlite_sequence" VALUES('scope',7);
INSERT INTO "sqlite_sequence" VALUES('pack',1);
INSERT INTO "sqlite_sequence" VALUES('list',2);
INSERT INTO "sqlite_sequence" VALUES('collection',1);
COMMIT;

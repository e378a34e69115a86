#include "weft/data/lmdb.h"

#include <lmdb.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <system_error>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/data/lmdb_file.h"
#include "weft/io/read_image.h"

namespace weft::data {
namespace {

constexpr const char* kOp = "lmdb";
constexpr std::size_t kLabelBytes = sizeof(std::int64_t);
constexpr std::int64_t kMostSamples = 100'000'000;

struct Close {
  void operator()(MDB_env* environment) const { mdb_env_close(environment); }
  void operator()(MDB_txn* transaction) const { mdb_txn_abort(transaction); }
};
using EnvironmentHandle = std::unique_ptr<MDB_env, Close>;
using Transaction = std::unique_ptr<MDB_txn, Close>;

void check(int status, const std::string& path, const char* action) {
  WEFT_CHECK(status == MDB_SUCCESS, Io, kOp, path, ": cannot ", action, ": ", mdb_strerror(status));
}

/// For writing, into the temporary file. map_bytes: address space, the most that the file can grow
/// to.
EnvironmentHandle open(const AtomicFile& to, std::size_t map_bytes) {
  const std::string& path = to.path();
  MDB_env* made = nullptr;
  check(mdb_env_create(&made), path, "begin");
  EnvironmentHandle environment(made);
  check(mdb_env_set_mapsize(made, map_bytes), path, "set its size");
  // AtomicFile already locks and flushes to disk, so LMDB need not.
  check(mdb_env_open(made, to.temporary().c_str(), MDB_NOSYNC | MDB_NOSUBDIR | MDB_NOLOCK, 0666),
        path, "open it");
  mdb_filehandle_t fd = -1;
  check(mdb_env_get_fd(made, &fd), path, "open it");
  WEFT_CHECK(to.is_temporary(fd), Io, kOp, path, ": somebody has replaced ", to.temporary());
  return environment;
}

Transaction begin(MDB_env* environment, const std::string& path) {
  MDB_txn* transaction = nullptr;
  check(mdb_txn_begin(environment, nullptr, 0, &transaction), path, "begin a transaction");
  return Transaction(transaction);
}

MDB_dbi open_table(MDB_txn* transaction, const std::string& path) {
  MDB_dbi table = 0;
  check(mdb_dbi_open(transaction, nullptr, 0, &table), path, "open its table");
  return table;
}

struct Key {
  explicit Key(std::int64_t index) {
    std::snprintf(text, sizeof text, "%08lld", static_cast<long long>(index));
  }
  MDB_val value() { return {std::strlen(text), text}; }
  char text[24];
};

}  // namespace

// The file's main table, whose keys are the indices.
class Lmdb::Table {
 public:
  explicit Table(const std::string& path) : path_(path), file_(file_of(path)) {
    if (size() == 0) return;
    // Keys are sorted and differ, so if one is missing the last one is not the last index.
    const std::string_view last = file_.last_key();
    const Key expected(size() - 1);
    WEFT_CHECK(last == expected.text, Io, kOp, path_, ": holds ", size(),
               " keys, so the last should be \"", expected.text, "\", got \"", last,
               "\"; the keys are the indices of the samples (data/lmdb.h)");
  }

  std::int64_t size() const { return file_.size(); }

  std::span<const std::byte> value(std::int64_t index) const {
    const Key key(index);
    const auto found = file_.find(key.text);
    WEFT_CHECK(found, Io, kOp, path_, ": has no key \"", key.text, "\", though it holds ", size(),
               "; the keys are the indices (data/lmdb.h)");
    return *found;
  }

 private:
  static std::string file_of(const std::string& path) {
    std::error_code unknown;  // ignored: opening the file reports it
    return std::filesystem::is_directory(path, unknown) ? path + "/data.mdb" : path;
  }

  std::string path_;
  LmdbFile file_;
};

struct Lmdb::Opened {
  std::mutex mutex;
  std::shared_ptr<const Table> table;
};

Lmdb::Lmdb(const std::string& path, const LmdbOptions& options)
    : path_(path),
      size_(Table(path).size()),
      limits_(options.limits),
      batcher_(kOp, options.format, 3),
      opened_(std::make_shared<Opened>()) {}

std::shared_ptr<const Lmdb::Table> Lmdb::table() const {
  const std::lock_guard lock(opened_->mutex);
  if (!opened_->table) opened_->table = std::make_shared<const Table>(path_);
  return opened_->table;
}

Lmdb::Batch Lmdb::get_batch(std::span<const std::int64_t> indices) const {
  Batch batch;
  get_batch(indices, batch, HostMemory(), default_generator().random64());
  return batch;
}

void Lmdb::get_batch(std::span<const std::int64_t> indices, Batch& batch, const HostMemory& memory,
                     std::uint64_t epoch_seed) const {
  const std::shared_ptr<const Table> table = this->table();
  const auto load = [&](std::int64_t index, Picture& picture) {
    const std::span<const std::byte> value = table->value(index);
    const std::string name = detail::concat(path_, ": sample ", Key(index).text);
    WEFT_CHECK(value.size() > kLabelBytes, Io, kOp, name, ": ", value.size(),
               " bytes; expected a label of 8 and a picture");
    WEFT_CHECK(value.size() - kLabelBytes <= limits_.max_bytes, Io, kOp, name, ": ", value.size(),
               " bytes are over the limit of ", limits_.max_bytes);
    std::int64_t label = 0;
    std::memcpy(&label, value.data(), kLabelBytes);
    io::Image image = io::parse_image(value.subspan(kLabelBytes), limits_, name);
    picture.swap(image);
    return label;
  };
  batcher_.fill(indices, size_, load, batch, memory, epoch_seed);
}

struct LmdbWriter::Impl {
  // Only address space: uses neither memory nor disk.
  static constexpr std::size_t kMapBytes = std::size_t{1} << 40;
  // LMDB keeps everything that a transaction writes in memory.
  static constexpr std::size_t kBytesAtOnce = std::size_t{16} << 20;

  explicit Impl(const std::string& path)
      : file(path),
        environment(open(file, kMapBytes)),
        transaction(begin(environment.get(), path)),
        table(open_table(transaction.get(), path)) {}

  void end_transaction() {
    check(mdb_txn_commit(transaction.release()), file.path(), "write");
    bytes = 0;
  }

  AtomicFile file;
  EnvironmentHandle environment;
  Transaction transaction;
  MDB_dbi table;
  std::int64_t count = 0;
  std::size_t bytes = 0;  // written by this transaction
};

LmdbWriter::LmdbWriter(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
LmdbWriter::~LmdbWriter() = default;

void LmdbWriter::add(std::int64_t label, std::span<const std::byte> picture) {
  Impl& to = *impl_;
  const std::string& path = to.file.path();
  WEFT_CHECK(to.count < kMostSamples, InvalidArgument, kOp, path, ": more than ", kMostSamples,
             " samples; use several files");
  WEFT_CHECK(to.transaction, Internal, kOp, path, ": a sample after commit, or after an error");
  Key name(to.count);
  MDB_val key = name.value(), value{kLabelBytes + picture.size(), nullptr};
  check(mdb_put(to.transaction.get(), to.table, &key, &value, MDB_RESERVE | MDB_APPEND), path,
        "write a sample");
  std::memcpy(value.mv_data, &label, kLabelBytes);
  std::memcpy(static_cast<std::byte*>(value.mv_data) + kLabelBytes, picture.data(), picture.size());
  ++to.count;
  to.bytes += value.mv_size;
  if (to.bytes < Impl::kBytesAtOnce) return;
  to.end_transaction();
  to.transaction = begin(to.environment.get(), path);
}

void LmdbWriter::commit() {
  WEFT_CHECK(impl_->transaction, Internal, kOp, impl_->file.path(), ": a second commit");
  impl_->end_transaction();
  impl_->environment.reset();
  impl_->file.commit();
}

}  // namespace weft::data

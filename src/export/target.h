// The place that an export is written to, and the steps by which processes agree on what it is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "export/export.h"
#include "export/shares.h"
#include "place/place.h"

namespace shardinit {

// One process uses one of these for one export, from several threads. `parts` has the files.
class ExportTarget {
 public:
  static std::unique_ptr<ExportTarget> At(const ExportParts& parts);
  virtual ~ExportTarget() = default;

  // Returns the record of this export if all of it is there. Throws Error (kConflict) if anything
  // else is there.
  virtual std::optional<std::string> Find() = 0;
  // Makes it the place of this export. Throws Error (kConflict) if it is another's.
  virtual void Open() = 0;

  // Returns where files are written. The place may hold the files of other processes, too.
  virtual std::shared_ptr<const Place> place() const = 0;
  // Returns the digest of what the writers agreed on; empty: no writer marks its files with it.
  virtual std::string claim_sha256() const { return {}; }
  // Throws Error if the place was given to another export meanwhile. A small file may skip this.
  virtual void RequireClaim(bool /*is_small*/) {}
  // Prepares for files, of which some are `large`.
  virtual void Prepare(bool /*has_large*/) {}

  // Looks which files and receipts are there, if other processes write, too.
  virtual void List() {}
  virtual int64_t SizeOf(size_t file) const = 0;  // -1: it was not there when List() looked
  // Whether shares have receipts, by which other processes, and later runs, know that they are
  // done.
  virtual bool has_receipts() const { return true; }
  // Whether shares without files have receipts: the export is complete when all processes are done.
  virtual bool has_empty_shares() const { return false; }
  virtual bool HasReceipt(int64_t share) const = 0;
  virtual std::optional<std::string> ReadReceipt(int64_t share) const = 0;
  virtual std::string PathOfReceipt(int64_t share) const = 0;
  virtual void PutReceipt(int64_t share, const std::string& text) const = 0;

  // Returns whether something has the name of the export, while this process makes a part of it.
  virtual bool IsThere() const { return false; }
  // Returns whether another process that makes parts has completed the export.
  virtual bool IsTaken() const { return false; }
  // Prepares for the files without elements. No share is missing then.
  virtual void BeginRest() {}
  // Completes the export, when all its files are there. Returns false if it could not get its name.
  virtual bool Commit() = 0;
  // Removes what killed runs of this export left. All of it is there.
  virtual void RemoveLeftOvers() const {}
};

// Exports into buckets: no object is ever replaced or removed, each is created under the condition
// that its name is free, and an object that exists is compared. shardinit-bucket(7) lists the
// steps.
std::unique_ptr<ExportTarget> BucketTarget(const ExportParts& parts);

}  // namespace shardinit

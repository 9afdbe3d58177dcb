// Defines where an export is written, and how processes agree on its contents.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "export/shares.h"
#include "place/place.h"

namespace shardinit {

// The target of one export in one process, used by several threads. `parts` has the files.
class ExportTarget {
 public:
  static std::unique_ptr<ExportTarget> At(const ExportParts& parts);
  virtual ~ExportTarget() = default;

  // Returns the record of this export if it is complete. Throws Error (kConflict) if the place
  // holds anything else.
  virtual std::optional<std::string> Find() = 0;
  // Claims the place for this export. Throws Error (kConflict) if it belongs to another export.
  virtual void Open() = 0;

  // Returns where files are written. The place may also hold files of other processes.
  virtual std::shared_ptr<const Place> place() const = 0;
  // Returns the digest of the claim that writers share; empty: writers do not mark files with it.
  virtual std::string claim_sha256() const { return {}; }
  // Throws Error if another export has claimed the place. A small file may skip this check.
  virtual void RequireClaim(bool /*is_small*/) {}
  // Prepares for files, of which some are large if `has_large`.
  virtual void Prepare(bool /*has_large*/) {}

  // Lists the existing files and receipts, if other processes write too.
  virtual void List() {}
  virtual int64_t SizeOf(size_t /*file*/) const { return -1; }  // of a file at the last List()
  // Returns the place of the receipts, by which other processes and later runs recognize finished
  // shares; null: there are no receipts.
  virtual const Place* receipts() const { return nullptr; }
  virtual std::string ReceiptName(int64_t share) const { return ShareReceipt(share); }
  virtual bool HasReceipt(int64_t share) const { return receipts()->Exists(ReceiptName(share)); }
  // Returns whether shares without files have receipts too. The export is then complete when all
  // processes are done.
  virtual bool has_empty_shares() const { return false; }

  // Returns whether the name of the export is taken while this process makes a part of it.
  virtual bool IsThere() const { return false; }
  // Returns whether another process that makes parts has completed the export.
  virtual bool IsTaken() const { return false; }
  // Prepares for the files without elements. Called when no share is missing.
  virtual void BeginRest() {}
  // Completes the export when all its files exist. Returns false if it could not get its name.
  virtual bool Commit() = 0;
  // Removes what killed runs of this export left. The export must be complete.
  virtual void RemoveLeftOvers() const {}
};

// Exports to buckets. No object is ever replaced or removed: each is created only if its name is
// free, and an existing object is compared. shardinit-bucket(7) lists the steps.
std::unique_ptr<ExportTarget> BucketTarget(const ExportParts& parts);

}  // namespace shardinit

# cmake -DFOLDER=DIR -DPATTERN=GLOB -DFUNCTION=NAME -DOUTPUT=FILE -P embed.cmake: the files below DIR
# with such names, as a function of base/embedded.h.
file(GLOB_RECURSE paths RELATIVE ${FOLDER} ${FOLDER}/${PATTERN})
list(SORT paths)
set(rows "")
foreach(path IN LISTS paths)
  file(READ ${FOLDER}/${path} text)
  string(APPEND rows "    {R\"embed(${path})embed\"sv, R\"embed(${text})embed\"sv},\n")
endforeach()
if(rows STREQUAL "")
  set(body "  return {};
")
else()
  set(body "  static constexpr EmbeddedFile kFiles[] = {
${rows}  };
  return kFiles;
")
endif()
file(WRITE ${OUTPUT} "#include \"base/embedded.h\"

namespace shardinit {

using namespace std::string_view_literals;

std::span<const EmbeddedFile> ${FUNCTION}() {
${body}}

}  // namespace shardinit
")

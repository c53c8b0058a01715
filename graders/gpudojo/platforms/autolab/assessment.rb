require "AssessmentBase.rb"

module @MODULE@
  include AssessmentBase

  def assessmentInitialize(course)
    super("@DAY@", course)
    @problems = []
  end
end
